"""The JSON API: what runs contain."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from roundoff.runs import JsonValue, TensorFile, object_of
from roundoff.serve.http import (
    Refusal,
    check_query,
    json_response,
    json_text_response,
    query_number,
    required_query,
    text,
)
from roundoff.serve.run_rows import RunRows
from roundoff.serve.runs_folder import OpenedRun, RunsFolder
from roundoff.serve.saved_tensors import (
    KINDS,
    TensorGroup,
    npy_chunks,
    npy_name,
    open_group,
    preview_tensor,
    tensor_groups,
)

MAX_ITEMS = 1000
"""A response has at most this many events or steps."""
MAX_NAMES = 16
MAX_LETTERS = 300
"""Longer patterns are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The responses below /api/."""

    folder: RunsFolder
    rows: RunRows

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/runs", self.runs),
            Route("/api/changes", self.changes),
            Route("/api/runs/{name}", self.run),
            Route("/api/runs/{name}/metrics", self.metrics),
            Route("/api/runs/{name}/events", self.events),
            Route("/api/runs/{name}/tensors", self.tensors),
            Route("/api/runs/{name}/tensor", self.tensor),
            Route("/api/runs/{name}/tensor.npy", self.tensor_npy),
        ]

    def runs(self, request: Request) -> Response:
        """All runs, one object each, the newest first."""
        check_query(request)
        return json_text_response(f'{{"runs": [{", ".join(row.text for row in self.rows.rows())}]}}')

    def changes(self, request: Request) -> Response:
        """By name, a version that changes with the row of the run; for runs given by `run=`, their current state."""
        check_query(request, "run")
        names = request.query_params.getlist("run")
        if names:
            return json_response({"runs": {name: self._now(name) for name in names[:MAX_NAMES]}})
        return json_response({"runs": {row.name: row.version for row in self.rows.rows()}})

    def run(self, request: Request) -> Response:
        """One run: its row of the list, its findings, and what it contains; `stamp` changes when any file does."""
        check_query(request)
        opened = self._open_run(request)
        row, run = self.rows.row(opened.name), opened.run
        details: dict[str, JsonValue] = {
            "stamp": opened.stamp,
            "info": object_of(run.info),
            "found": None if row.findings is None else [finding.to_object() for finding in row.findings],
            "recorded_steps": run.steps,
            "replayed_steps": run.replayed_steps,
            "tensors": [group.to_object() for group in tensor_groups(run)],
        }
        return json_response(row.to_object() | details)

    def metrics(self, request: Request) -> Response:
        """The metrics of steps, from a given one on."""
        check_query(request, "rank", "from", "limit")
        run = self._open_run(request).run
        first, limit = query_number(request, "from", default=0) or 0, _limit(request)
        found = (each for each in run.metrics(rank=query_number(request, "rank", default=0) or 0) if each.step >= first)
        chosen = list(islice(found, limit + 1))
        following = chosen[limit].step if len(chosen) > limit else None
        return json_response({"metrics": [object_of(each) for each in chosen[:limit]], "next": following})

    def events(self, request: Request) -> Response:
        """The events that match all filters, some at a time."""
        check_query(request, "step", "rank", "site", "phase", "op", "offset", "limit")
        run = self._open_run(request).run
        texts = {name: text(request, name, most=MAX_LETTERS) for name in ("site", "phase", "op")}
        found = run.iter_events(step=query_number(request, "step"), rank=query_number(request, "rank"), **texts)
        offset, limit = query_number(request, "offset", default=0) or 0, _limit(request)
        chosen = list(islice(found, offset, offset + limit + 1))
        following = offset + limit if len(chosen) > limit else None
        return json_response({"events": [event.to_object() for event in chosen[:limit]], "next": following})

    def tensors(self, request: Request) -> Response:
        """The groups of whole tensors; for a step, the names of its tensors."""
        check_query(request, "of", "step", "rank")
        run = self._open_run(request).run
        if "step" not in request.query_params:
            return json_response({"groups": [group.to_object() for group in tensor_groups(run)]})
        file = open_group(run, requested_group(request))
        names: list[JsonValue] = [
            {"name": key, "dtype": file.entry(key).dtype, "shape": list(file.entry(key).shape)} for key in file
        ]
        return json_response({"tensors": names})

    def tensor(self, request: Request) -> Response:
        """One tensor: its statistics, its first values, and a histogram of exponents."""
        file, key = self._tensor(request)
        return json_response({"name": key, **preview_tensor(file, key).to_object()})

    def tensor_npy(self, request: Request) -> Response:
        """One whole tensor as a numpy file."""
        file, key = self._tensor(request)
        name = npy_name(request.path_params["name"], key)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(npy_chunks(file, key), media_type="application/octet-stream", headers=headers)

    def _now(self, name: str) -> JsonValue:
        opened, row = self.folder.open(name), self.rows.row(name).to_object()
        return {"stamp": opened.stamp} | {key: row.get(key) for key in ("state", "detail", "num_steps", "last_loss")}

    def _open_run(self, request: Request) -> OpenedRun:
        return self.folder.open(request.path_params["name"])

    def _tensor(self, request: Request) -> tuple[TensorFile, str]:
        check_query(request, "of", "step", "rank", "name")
        run, key = self._open_run(request).run, required_query(request, "name")
        group = requested_group(request)
        file = open_group(run, group)
        if key not in file:
            raise Refusal(404, f"There is no tensor '{key}' in {group.title}.", fix="list them: /api/runs/NAME/tensors")
        return file, key


def requested_group(request: Request) -> TensorGroup:
    """Return the group of tensors that a request names."""
    kind = request.query_params.get("of", "step")
    if kind not in KINDS:
        raise Refusal(400, f"of={kind} is invalid.", why=f"it must be one of {', '.join(KINDS)}.")
    required_query(request, "step")
    step, rank = query_number(request, "step") or 0, query_number(request, "rank", default=0) or 0
    return TensorGroup(of=kind, step=step, rank=rank)


def _limit(request: Request) -> int:
    limit = query_number(request, "limit", default=100, most=MAX_ITEMS)
    if not limit:
        raise Refusal(400, "limit=0 is invalid.", why=f"it must be an integer from 1 to {MAX_ITEMS}.")
    return limit
