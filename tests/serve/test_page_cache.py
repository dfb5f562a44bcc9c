"""Pages are made once for all who ask, and again when their run changed."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.serve.app import MAX_PAGES, PageCache
from roundoff.serve.runs_folder import OpenedRun, RunsFolder
from tests.report.sample_runs import write_metrics_run

PATIENCE_SECONDS = 60.0


class Maker:
    """Makes pages slowly: each waits until it is let go."""

    def __init__(self) -> None:
        self.num_made = 0
        self.go = threading.Event()
        self.fails = False

    def __call__(self, candidate: OpenedRun, reference: OpenedRun | None) -> str:
        assert self.go.wait(PATIENCE_SECONDS)
        self.num_made += 1
        if self.fails:
            raise RunFolderError("damaged")
        return candidate.name + (f" against {reference.name}" if reference else "")


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def pages(maker: Maker) -> Iterator[PageCache]:
    pages = PageCache(make=maker)
    yield pages
    maker.go.set()
    pages.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    for name in "ab":
        write_metrics_run(tmp_path / name, [1.0])
    return RunsFolder(tmp_path)


def test_all_who_ask_meanwhile_get_the_one_page(pages: PageCache, maker: Maker, folder: RunsFolder) -> None:
    futures = [pages.page(folder.open("a")) for _ in range(10)]
    maker.go.set()
    assert {future.result(PATIENCE_SECONDS).html for future in futures} == {b"a"}
    assert pages.page(folder.open("a")).result(PATIENCE_SECONDS).html == b"a"
    assert maker.num_made == 1


def test_a_page_is_packed_for_browsers_that_unpack_it(pages: PageCache, maker: Maker, folder: RunsFolder) -> None:
    maker.go.set()
    page = pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    assert gzip.decompress(page.packed) == page.html == b"a"


def test_a_page_that_no_one_waits_for_any_more_does_not_stop_the_others(
    pages: PageCache, maker: Maker, folder: RunsFolder
) -> None:
    pages.page(folder.open("a"))
    assert pages.page(folder.open("b")).cancel()
    maker.go.set()
    assert pages.page(folder.open("b")).result(PATIENCE_SECONDS).html == b"b"
    assert maker.num_made == 2


def test_a_run_that_changed_gets_a_new_page(pages: PageCache, maker: Maker, folder: RunsFolder) -> None:
    maker.go.set()
    first = pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    (folder.path / "a" / "findings.json").write_text("{}")
    second = pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    assert first.stamp != second.stamp
    assert maker.num_made == 2


def test_a_page_depends_on_its_reference(pages: PageCache, maker: Maker, folder: RunsFolder) -> None:
    maker.go.set()
    alone = pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    against = pages.page(folder.open("a"), folder.open("b")).result(PATIENCE_SECONDS)
    other_way = pages.page(folder.open("b"), folder.open("a")).result(PATIENCE_SECONDS)
    assert [page.html for page in (alone, against, other_way)] == [b"a", b"a against b", b"b against a"]


def test_a_page_that_failed_is_tried_again(pages: PageCache, maker: Maker, folder: RunsFolder) -> None:
    maker.go.set()
    maker.fails = True
    with pytest.raises(RunFolderError, match="damaged"):
        pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    maker.fails = False
    assert pages.page(folder.open("a")).result(PATIENCE_SECONDS).html == b"a"


def test_only_the_last_few_pages_are_kept(pages: PageCache, maker: Maker, folder: RunsFolder) -> None:
    maker.go.set()
    for nth in range(MAX_PAGES + 1):
        (folder.path / "a" / "notes.txt").write_text("x" * nth)
        pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    assert len(pages._made) == MAX_PAGES
    write_metrics_run(folder.path / "c", [1.0])
    pages.page(folder.open("c")).result(PATIENCE_SECONDS)
    pages.page(folder.open("a")).result(PATIENCE_SECONDS)
    assert maker.num_made == MAX_PAGES + 2


def test_files_that_are_not_part_of_the_run_make_no_new_page(
    pages: PageCache, maker: Maker, folder: RunsFolder
) -> None:
    maker.go.set()
    before = folder.open("a").stamp
    for name in ("report.html", "flight-rank0.bin", "events.tmp"):
        (folder.path / "a" / name).write_text("x")
    assert folder.open("a").stamp == before
