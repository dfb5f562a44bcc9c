import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from roundoff.errors import UsageError
from roundoff.experiments.engine.process_pool import Task, TaskOutcome
from roundoff.experiments.engine.scheduler import Backend, connected_to, run_tasks

Run = Callable[..., list[TaskOutcome]]

KILL = f"__import__('os').kill(__import__('os').getpid(), {int(signal.SIGKILL)})"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine; the first to ask for it starts it."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL")
    yield
    ray.shutdown()


@pytest.fixture(params=["pool", pytest.param("ray", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Backend:
    """Where the tasks run: what holds here holds there."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return request.param


@pytest.fixture
def run(place: Backend) -> Run:
    return partial(run_tasks, on=place)


def tasks(*expressions: str, log: Path | None = None) -> list[Task]:
    """Calls of `eval`, which every process can find."""
    return [Task(name=text, call=eval, argument=text, log=log) for text in expressions]


def dies_once(flag: Path, then: str) -> str:
    """An expression that kills its process unless an earlier try has done so."""
    return f"{then} if __import__('os').path.exists({str(flag)!r}) else (open({str(flag)!r}, 'w').close(), {KILL})"


def waits_for(path: Path) -> str:
    """An expression that is true as soon as there is such a file, and false after a minute."""
    exists = f"__import__('os').path.exists({str(path)!r})"
    return f"any({exists} or __import__('time').sleep(0.1) for _ in range(600))"


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_returns_values_in_the_order_of_the_tasks(run: Run):
    outcomes = run(tasks("1 + 1", "__import__('time').sleep(0.3)", "'word'"), jobs=2)
    assert [outcome.value for outcome in outcomes] == [2, None, "word"]
    assert all(outcome.is_good and outcome.num_tries == 1 for outcome in outcomes)


def test_no_tasks_are_done_at_once(run: Run):
    assert run([], jobs=2) == []


def test_a_killed_process_is_an_outcome_and_the_others_go_on(run: Run):
    dead, alive, left = run(tasks(KILL, "7", "__import__('os')._exit(3)"), jobs=2, retries=0)
    assert dead.failure == "killed by SIGKILL (possibly out of memory)"
    assert (alive.value, alive.failure) == (7, None)
    assert left.failure == "the process ended with exit code 3"


def test_a_process_that_dies_is_tried_again_and_counted(run: Run, tmp_path: Path):
    again, good, never = run(tasks(dies_once(tmp_path / "died", then="7"), "8", KILL), jobs=2)
    assert (again.value, again.failure, again.num_tries) == (7, None, 2)
    assert (good.value, good.num_tries) == (8, 1)
    assert never.failure == "killed by SIGKILL (possibly out of memory) (2 tries)"
    assert never.num_tries == 2


def test_a_call_that_raises_is_not_tried_again(run: Run, tmp_path: Path):
    counted = tmp_path / "counted"
    (outcome,) = run(tasks(f"(open({str(counted)!r}, 'a').write('x'), 1 / 0)"), retries=5)
    assert (outcome.failure, outcome.num_tries) == ("ZeroDivisionError: division by zero", 1)
    assert counted.read_text() == "x"


def test_what_a_process_prints_goes_to_its_log(run: Run, tmp_path: Path):
    log = tmp_path / "logs" / "0.txt"
    run(tasks("print('hello')", log=log))
    assert log.read_text() == "hello\n"


def test_a_process_that_prints_nothing_leaves_no_log(run: Run, tmp_path: Path):
    run(tasks("1", log=tmp_path / "0.txt"))
    assert not (tmp_path / "0.txt").exists()


def test_tasks_work_in_the_folder_that_this_process_works_in(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (outcome,) = run(tasks("(print('hello'), __import__('os').getcwd())[1]", log=Path("log.txt")))
    assert outcome.value == str(tmp_path)
    assert (tmp_path / "log.txt").read_text() == "hello\n"


def test_a_value_that_cannot_be_sent_is_a_failure(run: Run):
    (outcome,) = run(tasks("lambda: 0"))
    assert outcome.failure is not None
    assert outcome.failure.startswith("its result cannot be sent to another process: ")


def test_every_call_has_a_process_of_its_own(run: Run):
    ids = {outcome.value for outcome in run(tasks(*["__import__('os').getpid()"] * 3))}
    assert len(ids) == 3
    assert os.getpid() not in ids


def test_outcomes_are_reported_as_soon_as_they_are_known(run: Run, tmp_path: Path):
    reported: list[TaskOutcome] = []

    def tell(outcome: TaskOutcome) -> None:
        reported.append(outcome)
        (tmp_path / "reported").touch()

    run(tasks(waits_for(tmp_path / "reported"), "'at once'"), jobs=2, on_result=tell)
    assert [outcome.value for outcome in reported] == ["at once", True]


def test_an_interrupt_leaves_no_process_running(run: Run, tmp_path: Path):
    def interrupt(outcome: TaskOutcome) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "pid"
    sleeps = f"(open({str(path)!r}, 'w').write(str(__import__('os').getpid())), __import__('time').sleep(600))"
    with pytest.raises(KeyboardInterrupt):
        run(tasks(sleeps, waits_for(path)), jobs=2, on_result=interrupt)
    began = time.monotonic()
    while is_alive(int(path.read_text())):
        time.sleep(0.1)
        assert time.monotonic() - began < 30


def test_what_a_task_leaves_running_ends_with_it(run: Run):
    (outcome,) = run(tasks("__import__('subprocess').Popen(['sleep', '600']).pid"))
    began = time.monotonic()
    while is_alive(outcome.value):
        time.sleep(0.1)
        assert time.monotonic() - began < 30


def test_0_jobs_make_the_calls_in_this_process():
    here, failed = run_tasks(tasks("__import__('os').getpid()", "1 / 0"), jobs=0)
    assert here.value == os.getpid()
    assert failed.failure == "ZeroDivisionError: division by zero"


def test_0_jobs_do_not_go_to_a_cluster():
    with pytest.raises(UsageError, match="--jobs 0 does not work on a cluster"):
        run_tasks(tasks("1"), jobs=0, on="ray")


def test_the_pool_needs_no_connection():
    with connected_to("pool"):
        assert run_tasks(tasks("1"))[0].value == 1
