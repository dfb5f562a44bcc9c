"""How a run is, by what its folder tells."""

from __future__ import annotations

import signal

import pytest

from roundoff.runs import Ending, RunInfo
from roundoff.serve.run_rows import RunState, state_of

RUNNING, FINISHED, FAILED = RunInfo(status="running"), RunInfo(status="finished"), RunInfo(status="failed")


@pytest.mark.parametrize(
    ("info", "ending", "seconds_quiet", "expected"),
    [
        (RUNNING, None, 10.0, RunState(word="running")),
        (RUNNING, None, 720.0, RunState(word="silent", detail="no output for 12 min; possibly killed")),
        (FINISHED, None, 1e6, RunState(word="finished")),
        (FAILED, None, 0.0, RunState(word="failed", detail="ended with an error")),
        (RUNNING, Ending(pid=1, signal=signal.SIGSEGV), 0.0, RunState(word="crashed", detail="ended by SIGSEGV")),
        (
            RUNNING,
            Ending(pid=1, signal=signal.SIGINT, forwarded_signal=signal.SIGINT),
            0.0,
            RunState(word="failed", detail="ended by SIGINT, sent by a user"),
        ),
        (RUNNING, Ending(pid=1, signal=250), 0.0, RunState(word="crashed", detail="ended by 250")),
        (FAILED, Ending(pid=1, exit_code=3), 0.0, RunState(word="crashed", detail="ended with exit code 3")),
        (FINISHED, Ending(pid=1, signal=9, was_over=True), 0.0, RunState(word="finished")),
        (
            RUNNING,
            Ending(pid=1, seconds_without_progress=90.0),
            0.0,
            RunState(word="hanging", detail="no progress for 1 min"),
        ),
        (RUNNING, Ending(pid=1, seconds_without_progress=90.0, has_gone_on=True), 0.0, RunState(word="running")),
        (RUNNING, Ending(pid=1, was_stopped=True), 0.0, RunState(word="crashed", detail="hung and was terminated")),
    ],
)
def test_the_state_is_what_the_folder_tells(
    info: RunInfo, ending: Ending | None, seconds_quiet: float, expected: RunState
) -> None:
    endings = [] if ending is None else [Ending(pid=0), ending]
    assert state_of(info, endings, seconds_quiet=seconds_quiet) == expected
