import os
import signal
import sys
import time
from pathlib import Path

import pytest

from roundoff.errors import SweepError
from roundoff.experiments import pool
from roundoff.experiments.pool import Outcome, Task, run_many


def tasks(*expressions: str, log: Path | None = None) -> list[Task]:
    """Calls of `eval`, which every process can find."""
    return [Task(name=text, call=eval, argument=text, log=log) for text in expressions]


@pytest.mark.parametrize("jobs", [0, 1, 2])
def test_returns_values_in_the_order_of_the_tasks(jobs: int):
    outcomes = run_many(tasks("1 + 1", "2 * 21", "'word'"), jobs=jobs)
    assert [outcome.value for outcome in outcomes] == [2, 42, "word"]
    assert all(outcome.is_good for outcome in outcomes)


def test_a_killed_process_is_an_outcome_and_the_others_go_on():
    kill = f"__import__('os').kill(__import__('os').getpid(), {int(signal.SIGKILL)})"
    dead, alive, left = run_many(tasks(kill, "7", "__import__('os')._exit(3)"), jobs=2)
    assert dead.failure == "killed by SIGKILL, perhaps for want of memory"
    assert (alive.value, alive.failure) == (7, None)
    assert left.failure == "the process ended with exit code 3"


@pytest.mark.parametrize("jobs", [0, 1])
def test_an_error_is_told_in_one_line(jobs: int, tmp_path: Path):
    (outcome,) = run_many(tasks("1 / 0", log=tmp_path / "log.txt"), jobs=jobs)
    assert outcome.failure == "ZeroDivisionError: division by zero"


def test_what_a_process_prints_goes_to_its_log(tmp_path: Path):
    log = tmp_path / "logs" / "0.txt"
    run_many(tasks("print('hello')", log=log))
    assert log.read_text() == "hello\n"


def test_a_process_that_prints_nothing_leaves_no_log(tmp_path: Path):
    run_many(tasks("1", log=tmp_path / "0.txt"))
    assert not (tmp_path / "0.txt").exists()


def test_a_value_that_cannot_be_sent_is_a_failure():
    (outcome,) = run_many(tasks("lambda: 0"))
    assert outcome.failure is not None
    assert outcome.failure.startswith("its value cannot be sent to another process")


def test_every_call_has_a_process_of_its_own():
    ids = {outcome.value for outcome in run_many(tasks(*["__import__('os').getpid()"] * 3))}
    assert len(ids) == 3
    assert os.getpid() not in ids


def test_outcomes_are_told_as_soon_as_they_are_there():
    told: list[Outcome] = []
    run_many(tasks("__import__('time').sleep(1)", "1"), jobs=2, on_result=told.append)
    assert [outcome.value for outcome in told] == [1, None]


def test_an_interrupt_leaves_no_process_behind(tmp_path: Path):
    def interrupt(outcome: Outcome) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "pid"
    text = f"(open({str(path)!r}, 'w').write(str(__import__('os').getpid())), __import__('time').sleep(60))"
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_many(tasks(text, "__import__('time').sleep(0.5)"), jobs=2, on_result=interrupt)
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


def test_an_error_of_ours_keeps_its_first_two_lines():
    error = SweepError.explain("What happened.", why="a reason.", fix="a fix.")
    assert pool._in_one_line(error) == "SweepError: What happened. why: a reason."


@pytest.mark.skipif(sys.platform != "linux", reason="forks from a clean server on Linux only")
def test_processes_inherit_nothing_from_this_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "planted", "by the test", raising=False)
    (outcome,) = run_many(tasks("hasattr(__import__('roundoff.experiments.pool').experiments.pool, 'planted')"))
    assert outcome.value is False
