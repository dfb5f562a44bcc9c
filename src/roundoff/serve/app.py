"""The web application: which URL shows what, and the cache of reports."""

from __future__ import annotations

import asyncio
import gzip
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from roundoff.errors import RoundoffError
from roundoff.serve.api import Api, requested_group
from roundoff.serve.guard import AccessPolicy, Guard
from roundoff.serve.http import Etags, Refusal, check_query, compare_link, refusal_response, required_query
from roundoff.serve.pages import compare_frame, list_page, run_frame
from roundoff.serve.run_rows import RunRow, RunRows
from roundoff.serve.runs_folder import OpenedRun, RunsFolder
from roundoff.serve.saved_tensors import open_group, preview_tensor, tensor_groups, tensors_page

MAX_PAGES = 6
"""Pages are 5 to 8 MB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPage:
    """A page, and the stamp of the files that it shows."""

    html: bytes
    packed: bytes
    """The same, compressed with gzip to a third of the size."""
    stamp: str


class PageCache:
    """Pages by run and reference; a page is made again only when a file of them has changed."""

    def __init__(self, *, make: Callable[[OpenedRun, OpenedRun | None], str] | None = None) -> None:
        self._make = make if make is not None else _run_page
        self._made: OrderedDict[str, Future[CachedPage]] = OrderedDict()
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # One thread: two pages at once would each take twice as long, and twice the memory. A daemon, unlike threads of
        # an executor: stopping the server does not wait for a page that no one will see.
        threading.Thread(target=self._work, name="pages", daemon=True).start()

    def page(self, candidate: OpenedRun, reference: OpenedRun | None = None) -> Future[CachedPage]:
        """Return the page of a run, against a reference if there is one; it may still have to be made."""
        stamp = page_stamp(candidate, reference)
        names = f"{candidate.name}/{reference.name if reference else ''}/{stamp}"
        with self._lock:
            known = self._made.get(names)
            if known is None or known.cancelled() or (known.done() and known.exception() is not None):
                known = self._made[names] = Future()
                self._asked.put(partial(self._fulfil, known, candidate, reference, stamp))
            self._made.move_to_end(names)
            while len(self._made) > MAX_PAGES:
                self._made.popitem(last=False)
            return known

    def close(self) -> None:
        """Make no more pages, and do not wait for the one that is being made."""
        self._asked.put(None)

    def _work(self) -> None:
        while (make := self._asked.get()) is not None:
            make()

    def _fulfil(
        self, future: Future[CachedPage], candidate: OpenedRun, reference: OpenedRun | None, stamp: str
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return  # no one waits for it any more
        try:
            html = self._make(candidate, reference).encode(errors="replace")
            future.set_result(CachedPage(html=html, packed=gzip.compress(html, compresslevel=1), stamp=stamp))
        except Exception as error:
            future.set_exception(error)


def page_stamp(candidate: OpenedRun, reference: OpenedRun | None = None) -> str:
    """Return the stamp of a page: that of its run, and of its reference if there is one."""
    return candidate.stamp if reference is None else f"{candidate.stamp}-{reference.stamp}"


def _run_page(candidate: OpenedRun, reference: OpenedRun | None) -> str:
    from roundoff.diagnose.diagnosis import view_run
    from roundoff.report.run_page.document import (
        run_page,  # these import torch, which the list of runs does not need
    )

    return run_page(view_run(candidate.run, against=reference.run if reference is not None else None)).html


POLL_SECONDS = 2.0


class App:
    """The pages of a directory of runs."""

    def __init__(self, folder: RunsFolder, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.folder, self.rows, self.pages = folder, RunRows(folder), PageCache()
        self._etags, self._poll_seconds = Etags(), poll_seconds

    def asgi(self, policy: AccessPolicy) -> ASGIApp:
        """Return the application that a server runs."""
        routes = [
            Route("/", self.list),
            Route("/favicon.ico", _nothing),
            Route("/compare", self.compare),
            Route("/compare/page", self.compare_page),
            Route("/overlay", self.overlay),
            Route("/runs/{name}", self.run),
            Route("/runs/{name}/page", self.run_page),
            Route("/runs/{name}/tensors", self.tensors),
            *Api(folder=self.folder, rows=self.rows).routes(),
        ]
        handlers: dict[type[Exception], Callable[[Request, Exception], Response]] = {
            Refusal: _refuse,
            RoundoffError: _unreadable,
            HTTPException: _not_there,
            Exception: _our_fault,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # no redirects: a URL is right or wrong
        return Guard(app, policy)

    def prepare(self) -> int:
        """Read all runs, so that the list opens fast, and return how many there are."""
        return len(self._list()[0])

    def list(self, request: Request) -> Response:
        """All runs."""
        check_query(request)
        return HTMLResponse(self._list()[1])

    def run(self, request: Request) -> Response:
        """The report about a run, in its frame."""
        check_query(request)
        opened = self.folder.open(request.path_params["name"])
        row, has_tensors = self.rows.row(opened.name), bool(tensor_groups(opened.run))
        body = run_frame(row, stamp=opened.stamp, has_tensors=has_tensors, poll_seconds=self._poll_seconds)
        return HTMLResponse(body)

    async def run_page(self, request: Request) -> Response:
        """The report about a run, as `roundoff report` writes it."""
        check_query(request)
        opened = await run_in_threadpool(self.folder.open, request.path_params["name"])
        return await self._page(request, opened)

    def compare(self, request: Request) -> Response:
        """The comparison of two runs, in its frame; the form of the list is redirected to their URL."""
        check_query(request, "run", "reference", "candidate")
        picked = request.query_params.getlist("run")
        if picked:
            if len(picked) != 2:
                raise Refusal(
                    400,
                    f"{len(picked)} {'run is' if len(picked) == 1 else 'runs are'} selected.",
                    why="a comparison needs two.",
                    fix="select two runs.",
                )
            return RedirectResponse(compare_link(reference=picked[0], candidate=picked[1]), status_code=303)
        reference, candidate = self._pair(request)
        stamp = page_stamp(candidate, reference)
        rows = self.rows.row(reference.name), self.rows.row(candidate.name)
        return HTMLResponse(compare_frame(*rows, stamp=stamp, poll_seconds=self._poll_seconds))

    async def compare_page(self, request: Request) -> Response:
        """The report about a run against a reference, as `roundoff report --against` writes it."""
        check_query(request, "reference", "candidate")
        reference, candidate = await run_in_threadpool(self._pair, request)
        return await self._page(request, candidate, reference)

    def overlay(self, request: Request) -> Response:
        """The losses of several runs in one chart; without names, of the newest ones."""
        from roundoff.serve.overlay import MAX_RUNS, overlay_page  # it imports torch, which the list does not need

        check_query(request, "run")
        picked = request.query_params.getlist("run")
        names = picked or [row.name for row in self.rows.rows() if row.losses]
        if len(picked) > MAX_RUNS:
            raise Refusal(400, f"{len(picked)} runs are selected.", why=f"at most {MAX_RUNS} are drawn together.")
        chosen = list(dict.fromkeys(names))[:MAX_RUNS]
        return HTMLResponse(overlay_page([(self.rows.row(name), self.folder.open(name)) for name in chosen]))

    def tensors(self, request: Request) -> Response:
        """The whole tensors of a run, and a preview of one."""
        check_query(request, "of", "step", "rank", "name")
        run = self.folder.open(request.path_params["name"]).run
        name, groups = request.path_params["name"], tensor_groups(run)
        chosen = requested_group(request) if "step" in request.query_params else next(iter(groups), None)
        if chosen is None:
            return HTMLResponse(tensors_page(name, groups, chosen=None, file=None, look=None))
        file, key = open_group(run, chosen), request.query_params.get("name")
        if key is not None and key not in file:
            raise Refusal(404, f"There is no tensor '{key}' in {chosen.title}.")
        look = None if key is None else (key, preview_tensor(file, key))
        return HTMLResponse(tensors_page(name, groups, chosen=chosen, file=file, look=look))

    def _list(self) -> tuple[Sequence[RunRow], bytes]:
        rows = self.rows.rows()
        return rows, list_page(rows, folder=self.folder.path, poll_seconds=self._poll_seconds)

    async def _page(self, request: Request, candidate: OpenedRun, reference: OpenedRun | None = None) -> Response:
        # A reader who leaves does not cancel the page: others may be waiting for it.
        made = await asyncio.shield(asyncio.wrap_future(self.pages.page(candidate, reference)))
        return self._etags.page(request, made.stamp, html=made.html, packed=made.packed)

    def _pair(self, request: Request) -> tuple[OpenedRun, OpenedRun]:
        reference, candidate = required_query(request, "reference"), required_query(request, "candidate")
        if reference == candidate:
            raise Refusal(400, f"'{reference}' is selected twice.", why="a comparison needs two different runs.")
        return self.folder.open(reference), self.folder.open(candidate)


def _nothing(request: Request) -> Response:
    """There is no icon, which is not an error."""
    return Response(status_code=204)


def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return refusal_response(request, error)


def _unreadable(request: Request, error: Exception) -> Response:
    return refusal_response(request, Refusal.of_error(422, error))


def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal_response(request, Refusal(error.status_code, f"'{request.url.path}' does not exist."))


def _our_fault(request: Request, error: Exception) -> Response:
    why = f"{type(error).__name__}: the server's terminal shows the details."
    return refusal_response(request, Refusal(500, "Internal error of roundoff.", why=why))
