"""The reports of runs and comparisons: made by one thread, once for all readers, and the last few cached."""

from __future__ import annotations

import gzip
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from roundoff.serve.runs_folder import OpenedRun

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
    from roundoff.diagnose.run_view import view_run
    from roundoff.report.run_page.document import (
        run_page,  # these import torch, which the list of runs does not need
    )

    return run_page(view_run(candidate.run, against=reference.run if reference is not None else None)).html
