"""`roundoff mcp`: what runs contain and what is wrong with them, for agents, over the Model Context Protocol."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.options import runs_option
from roundoff.errors import RoundoffError, ServeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp.server.mcpserver import MCPServer

    from roundoff.runs import JsonValue, Run
    from roundoff.serve.runs_folder import RunsFolder

MAX_LETTERS = 40_000
"""A result is cut to this size: it is read by a model, which pays for each word."""
MAX_EVENTS = 200
TIMEOUT_SECONDS = 600
_LARGE = ("sketch", "histogram", "losses")
_INSTRUCTIONS = (
    "Call list_runs, then diagnose: the first finding is the verdict, its edits say what to change in which line. "
    "explain gives the measurements of one finding. Numbers that are not finite are the words nan, inf and -inf."
)


@click.command("mcp", epilog="Example: roundoff mcp --runs runs")
@runs_option("Directory of the runs; nothing outside of it is read.")
@click.option("--allow-run", is_flag=True, help="Let replay, what-if and plan run the code of trainings.")
def mcp_command(runs: Path, allow_run: bool) -> None:
    """Serve the runs in DIR to an agent over the Model Context Protocol, on stdin and stdout.

    Tools: list_runs, diagnose, explain, events, compare, replay, what_if, plan. They read, and write nothing, unless
    --allow-run is given: then replay, what_if and plan start processes that run the user's own code.
    """
    for name, extra in (("mcp", "mcp"), ("starlette", "mcp")):
        if importlib.util.find_spec(name) is None:
            raise ServeError.explain(
                f"{name} is not installed.", why="roundoff mcp needs it.", fix=f"pip install 'roundoff[{extra}]'"
            )
    from roundoff.serve.runs_folder import RunsFolder

    mcp_server(RunTools(folder=RunsFolder(runs), allow_run=allow_run)).run("stdio")


def mcp_server(tools: RunTools) -> MCPServer[Any]:
    """Return the server with its tools."""
    from importlib.metadata import version

    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server: MCPServer[Any] = MCPServer(
        "roundoff", instructions=_INSTRUCTIONS, version=version("roundoff"), log_level="WARNING"
    )
    may_run = {tools.replay, tools.what_if, tools.plan} if tools.allow_run else set()
    for tool in (
        *(tools.list_runs, tools.diagnose, tools.explain, tools.events),
        *(tools.compare, tools.replay, tools.what_if, tools.plan),
    ):
        hints = ToolAnnotations(read_only_hint=tool not in may_run, open_world_hint=False)
        server.tool(annotations=hints, structured_output=True)(tool)
    return server


@dataclass(frozen=True, kw_only=True)
class RunTools:
    """The tools. The docstring of each is what the agent reads; a run is named as list_runs names it."""

    folder: RunsFolder
    allow_run: bool = False

    def list_runs(self, limit: int = 50) -> dict[str, Any]:
        """List runs, the newest first: state, steps, last loss, and the verdict of its diagnosis."""
        from roundoff.serve.run_rows import RunRows

        with _tool_errors():
            rows = RunRows(self.folder).rows()
            shown = [row.to_object() for row in rows[: max(1, limit)]]
            for row in shown:
                row.pop("losses", None)
            return cut_to_size({"runs": shown, "num_runs": len(rows)})

    def diagnose(self, run: str) -> dict[str, Any]:
        """Say what went wrong in a run, the verdict first: where, why, and the edits that fix it, as file and line."""
        from roundoff.diagnose.diagnosis import coverage_of, view_run
        from roundoff.runs import Answer

        with _tool_errors():
            view = view_run(self._open(run))
            answers = {str(answer): sum(each.answer is answer for each in view.answers) for answer in Answer}
            findings = [finding.to_object() for finding in view.findings]
            coverage = coverage_of(view.run).to_object()
            return cut_to_size({"run": run, **coverage, "findings": findings, "rules": answers})

    def explain(self, run: str, finding: str) -> dict[str, Any]:
        """Explain one finding by its id or code: what the code means, all measurements, the edits, and what follows."""
        from roundoff.diagnose.diagnosis import view_run
        from roundoff.report.explanation import explain_finding

        with _tool_errors():
            return cut_to_size(explain_finding(view_run(self._open(run)).findings, finding).to_object())

    def events(
        self,
        run: str,
        step: int | None = None,
        site: str | None = None,
        op: str | None = None,
        phase: str | None = None,
        replayed_step: int | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> dict[str, Any]:
        """List recorded tensors with their numbers, by patterns such as site='blocks.*' and op='aten.bmm#0'.

        `replayed_step` looks into a bad step that was replayed op by op, instead of into the recorded steps.
        """
        with _tool_errors():
            opened = self._open(run)
            source = opened if replayed_step is None else opened.replay(replayed_step)
            found = source.iter_events(step=step, site=site, op=op, phase=phase)
            limit = min(max(1, limit), MAX_EVENTS)
            chosen = list(islice(found, offset, offset + limit + 1))
            events = [{k: v for k, v in event.to_object().items() if k not in _LARGE} for event in chosen[:limit]]
            following = offset + limit if len(chosen) > limit else None
            known = {"recorded_steps": opened.steps, "replayed_steps": opened.replayed_steps}
            return cut_to_size({"events": events, "next_offset": following, **known})

    def compare(self, reference: str, candidate: str, step: int | None = None) -> dict[str, Any]:
        """Find the first op in which one run differs from another by more than their formats explain."""
        from roundoff.cli.compare import report_on_layouts
        from roundoff.compare.layouts.layout_comparison import layouts_differ
        from roundoff.compare.runs.run_comparison import compare_runs
        from roundoff.diagnose.against import findings_against
        from roundoff.report.comparisons.compared_runs import ComparedRuns

        with _tool_errors():
            runs = self._open(reference), self._open(candidate)
            if layouts_differ(*runs):
                return cut_to_size(report_on_layouts(*runs, None, step=step).to_object())
            comparison = compare_runs(*runs, step=step)
            finding = next(iter(findings_against(comparison)), None)
            compared = ComparedRuns(comparison=comparison, finding=finding, reference=reference, candidate=candidate)
            return cut_to_size({"differs": compared.differs, **compared.to_object()})

    def replay(
        self, run: str, step: int | None = None, builder: str | None = None, recipe: str | None = None
    ) -> dict[str, Any]:
        """Describe the bad step that was saved: its origin, batch and models.

        With `builder` (FILE.py:FUNCTION) run it again, with another recipe if one is given; needs --allow-run.
        """
        from roundoff.cli.replay import find_saved_step
        from roundoff.replay.saved.saved_step import describe_saved_step

        with _tool_errors():
            opened = self._open(run)
            if builder is not None:
                options = {"--builder": builder, "--recipe": recipe, "--step": step}
                return self._run_command("replay", str(opened.path), options)
            saved_step, rank = find_saved_step(opened, step=step, rank=None)
            return cut_to_size({"run": run, **describe_saved_step(saved_step, rank=rank).to_object()})

    def what_if(
        self, run: str, builder: str | None = None, lr: str | None = None, clip: float | None = None,
        wide: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """List what was tried in replays of a bad step (a lower rate, clipping, a layer in fp32) and what helped.

        With `builder` (FILE.py:FUNCTION) and a change try that one; needs --allow-run.
        """
        from roundoff.runs import WhatIfProbe, object_of

        with _tool_errors():
            opened = self._open(run)
            if builder is not None:
                options = {"--builder": builder, "--lr": lr, "--clip": clip, "--wide": wide}
                return self._run_command("what-if", str(opened.path), options)
            return cut_to_size({"run": run, "tried": [object_of(probe) for probe in opened.probes(WhatIfProbe)]})

    def plan(self, run: str, steps: int | None = None) -> dict[str, Any]:
        """Return the command that makes a mixed-precision recipe for the training of a run.

        With --allow-run, run it: it trains several times.
        """
        with _tool_errors():
            opened = self._open(run)
            if not self.allow_run:
                return {"run": run, "command": ["roundoff", "plan", str(opened.path)], "is_allowed": False}
            return self._run_command("plan", str(opened.path), {"--steps": steps})

    def _open(self, name: str) -> Run:
        return self.folder.open(name).run

    def _run_command(self, command: str, path: str, options: Mapping[str, object]) -> dict[str, Any]:
        """Run a command of ours that runs the user's code, in a process of its own, and return its JSON."""
        if not self.allow_run:
            raise ServeError.explain(
                f"`roundoff {command}` would run the code of the training.",
                why="this server only reads.",
                fix="start it with: roundoff mcp --allow-run",
            )
        words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        line = [sys.executable, "-m", "roundoff", command, "--json", *words, path]
        try:
            done = subprocess.run(
                line, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL, check=False
            )
            return cut_to_size({"exit_code": done.returncode, **json.loads(done.stdout[done.stdout.index("{") :])})
        except subprocess.TimeoutExpired:
            raise ServeError.explain(f"`roundoff {command}` took more than {TIMEOUT_SECONDS} s.") from None
        except ValueError:
            why = (done.stderr.strip().splitlines() or ["it printed nothing."])[-12:]
            raise ServeError.explain(f"`roundoff {command}` failed.", why=" ".join(why)) from None


_MAX_TEXT = 2_000
"""Where a result is too long, texts are cut to this many characters."""


def cut_to_size(value: Mapping[str, JsonValue], *, most: int = MAX_LETTERS) -> dict[str, Any]:
    """Return a result as plain JSON values; where it is too long, lists and texts are cut; `left_off` says how much.

    >>> cut_to_size({"rows": list(range(9)), "loss": float("nan")}, most=45)
    {'rows': [0, 1, 2, 3, 4], 'loss': 'nan', 'left_off': {'rows': 4}}
    """
    from roundoff.runs import to_json

    text = to_json(value)
    whole: dict[str, Any] = json.loads(text)
    for length in (200, 50, 20, 5, 1):
        if len(text) <= most:
            break
        left_off: dict[str, int] = {}
        cut = _cut(json.loads(to_json(value)), length, left_off, "")
        whole = {**cut, "left_off": left_off}
        text = json.dumps(cut)
    return whole


def _cut(value: Any, length: int, left_off: dict[str, int], name: str) -> Any:
    """Return a value whose lists have at most this many items, and count what is cut by the name of the list."""
    if isinstance(value, dict):
        return {key: _cut(each, length, left_off, key) for key, each in value.items()}
    if isinstance(value, list):
        if len(value) > length:
            left_off[name] = left_off.get(name, 0) + len(value) - length
        return [_cut(each, length, left_off, name) for each in value[:length]]
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        left_off[name] = left_off.get(name, 0) + len(value) - _MAX_TEXT
        return value[:_MAX_TEXT]
    return value


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Turn errors that are for the user into errors of the tool, with their text."""
    from mcp.server.mcpserver.exceptions import ToolError

    from roundoff.serve.http import Refusal

    try:
        yield
    except Refusal as refusal:
        raise ToolError(" ".join(filter(None, (refusal.what, refusal.why, refusal.fix)))) from refusal
    except RoundoffError as error:
        raise ToolError(str(error)) from error
