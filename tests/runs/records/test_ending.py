import signal
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Ending, Run, RunInfo, RunWriter, ending_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path / "a", RunInfo())
    return tmp_path / "a"


def test_an_ending_is_read_as_it_was_written(folder: Path):
    ending = Ending(pid=7, signal=int(signal.SIGSEGV), last_rss_bytes=2**30, seconds_without_progress=61.5)
    ending.write(folder, rank=3)
    run = Run.open(folder)
    assert run.ending(rank=3) == ending
    assert run.ranks == [3]


def test_a_later_ending_replaces_the_earlier_one(folder: Path):
    Ending(pid=7, seconds_without_progress=61.5).write(folder, rank=0)
    Ending(pid=7, seconds_without_progress=61.5, has_gone_on=True, exit_code=0).write(folder, rank=0)
    ending = Run.open(folder).ending()
    assert ending is not None
    assert ending.has_gone_on


def test_a_run_without_one_says_nothing(folder: Path):
    run = Run.open(folder)
    assert (run.ending(), run.flight(), run.python_stacks(), run.native_stacks()) == (None, None, "", "")


def test_a_broken_one_is_an_error_that_names_it(folder: Path):
    ending_path(folder, rank=0).write_text('{"pid": "seven"}')
    with pytest.raises(RunFolderError, match=r"ending-rank0\.json"):
        Run.open(folder).ending()
