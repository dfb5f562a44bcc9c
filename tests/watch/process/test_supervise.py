import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roundoff.runs import Run
from roundoff.watch.process import supervise as module

Command = Callable[[str], list[str]]


def test_the_parent_ends_with_the_childs_exit_code(supervised):
    outcome = supervised("returns")
    assert (outcome.code, outcome.reported) == (7, [])


def test_an_exception_of_the_child_is_the_childs(supervised):
    outcome = supervised("raises")
    assert outcome.code == 1
    assert outcome.errors.count("ValueError: the child's own") == 1


def test_a_run_that_ends_well_leaves_an_ending_and_no_stacks(supervised):
    outcome = supervised("worker-crashes")
    assert (outcome.code, outcome.reported) == (0, [])
    ending = Run.open(outcome.folder).ending()
    assert ending is not None
    assert (ending.exit_code, ending.signal, ending.seconds_without_progress) == (0, None, None)
    assert not (outcome.folder / "crash-rank0.txt").exists()


def test_a_killed_child_is_reported_with_its_memory_and_the_parent_dies_the_same_way(supervised):
    outcome = supervised("killed")
    assert outcome.code == -signal.SIGKILL
    (ending,) = outcome.reported
    assert (ending["signal"], ending["exit_code"], ending["rank"]) == (signal.SIGKILL, None, 0)
    assert ending["folder"] == str(outcome.folder)
    assert ending["peak_rss_bytes"] > 50e6
    assert ending["memory_bytes"] > ending["available_bytes"] > 0
    run = Run.open(outcome.folder)
    flight = run.flight()
    assert flight is not None
    assert (flight.step, flight.phase, flight.sites) == (3, "forward", ("<model>", "blocks.1"))
    ending = run.ending()
    assert ending is not None
    assert ending.signal == signal.SIGKILL


def test_an_end_without_a_word_is_reported(supervised):
    outcome = supervised("exits-without-a-word")
    assert outcome.code == 3
    assert [ending["exit_code"] for ending in outcome.reported] == [3]


def test_a_child_that_dies_before_there_is_a_folder_ends_the_parent_the_same_way(supervised):
    outcome = supervised("ends-before-the-folder")
    assert (outcome.code, outcome.reported) == (-signal.SIGSEGV, [])


@pytest.mark.parametrize(("what", "code"), [("waits", -signal.SIGTERM), ("handles-sigterm", 5)])
def test_a_signal_to_the_parent_reaches_the_child(command: Command, what: str, code: int):
    parent, child = started(command(what))
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(timeout=10) == code
    assert not is_alive(child)


def test_an_interrupt_from_the_terminal_reaches_the_child_once_and_the_parent_waits(command: Command):
    """Only a terminal can send one to both at once, so this test has one of its own."""
    master, slave = os.openpty()
    program = f"import os, pty, sys; os.setsid(); import fcntl, termios; fcntl.ioctl({slave}, termios.TIOCSCTTY, 0)"
    argv = command("is-interrupted")
    program += f"; os.execv(sys.executable, {argv!r})"
    process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[slave], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    os.write(master, b"\x03")
    assert process.wait(timeout=10) == 130
    os.close(master)
    os.close(slave)
    process.stdout.close()


def test_the_child_does_not_outlive_a_killed_parent(command: Command):
    parent, child = started(command("waits"))
    parent.kill()
    parent.wait(timeout=300)
    end = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(child)


def test_where_a_system_cannot_fork_the_child_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(module, "can_supervise", lambda: False)
    seen = []

    def child(guard) -> int:
        seen.append(os.getpid())
        return 4

    assert module.supervise(child) == 4
    assert seen == [os.getpid()]


def test_importing_it_loads_neither_torch_nor_numpy():
    code = (
        "import sys, roundoff.watch.process.supervise; print([m for m in sys.modules if m in ('torch', "
        "'backports.zstd', 'numpy')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.strip() == "[]"


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as stdout:
        child = int(stdout.readline().split()[1])
    return parent, child


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_child_draws_the_random_numbers_that_a_start_up_file_has_seeded(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import random; random.seed(3)")
    (tmp_path / "draws.py").write_text("import random; print(random.random())")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    bare, watched = (
        subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
        for words in (["draws.py"], ["-m", "roundoff", "run", "draws.py"])
    )
    assert watched.splitlines()[0] == bare.strip()
