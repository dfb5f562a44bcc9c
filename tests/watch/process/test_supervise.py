import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roundoff.diagnose.process.deaths import process_deaths
from roundoff.runs import Run
from roundoff.watch.process import supervise as module
from roundoff.watch.process.supervise import ProcessGuard

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
    assert ending["peak_rss_bytes"] > 20e6  # Python alone; the child loads nothing large
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


PROGRAM = Path(__file__).parent / "supervised.py"


def test_python_stacks_of_a_crash_are_kept(supervised):
    outcome = supervised("null")
    assert outcome.code == -signal.SIGSEGV
    assert [ending["signal"] for ending in outcome.reported] == [signal.SIGSEGV]
    stacks = Run.open(outcome.folder).python_stacks()
    assert "Segmentation fault" in stacks
    assert 'supervised.py", line' in stacks
    assert " in string_at" in stacks


def test_without_the_compiled_kernels_there_are_python_stacks_all_the_same(supervised):
    outcome = supervised("null", gdb=True, ROUNDOFF_KERNELS="torch")
    assert outcome.code == -signal.SIGSEGV
    run = Run.open(outcome.folder)
    assert " in string_at" in run.python_stacks()
    assert run.native_stacks() == ""


def test_a_script_that_turns_faulthandler_on_itself_gets_its_stacks_and_we_ours(supervised):
    outcome = supervised("null-under-its-own-faulthandler")
    assert outcome.code == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in outcome.errors
    stacks = Run.open(outcome.folder).python_stacks()
    assert stacks.startswith("== crash: signal 11 in thread ")
    assert " in string_at" in stacks


def test_a_crash_on_an_overflown_stack_is_caught(supervised):
    outcome = supervised("overflow")
    assert outcome.code == -signal.SIGSEGV
    assert " in __repr__" in Run.open(outcome.folder).python_stacks()


def test_a_crash_while_the_process_ends_is_reported(supervised):
    outcome = supervised("crashes-at-its-end")
    assert outcome.code == -signal.SIGSEGV
    assert [(ending["signal"], ending["was_over"]) for ending in outcome.reported] == [(signal.SIGSEGV, True)]


@pytest.mark.usefixtures("needs_gdb")
def test_native_stacks_of_a_crash_name_the_op(supervised):
    outcome = supervised("op", gdb=True)
    assert outcome.code == -signal.SIGBUS
    (ending,) = outcome.reported
    assert 0 < ending["native_seconds"] < 30
    run = Run.open(outcome.folder)
    assert run.native_stacks().startswith("== crash: signal 7 in thread ")
    (finding,) = process_deaths(run)
    place = (finding.rule, finding.step, finding.phase, finding.site, finding.op, finding.rank)
    assert place == ("native-crash", 3, "forward", "blocks.1", "aten.mm", 0)
    lines = PROGRAM.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# the line that crashes" in text)
    assert finding.source == f"tests/watch/process/supervised.py:{line}"


@pytest.mark.usefixtures("needs_gdb")
def test_an_abort_has_native_stacks_too(supervised):
    outcome = supervised("abort", gdb=True)
    assert outcome.code == -signal.SIGABRT
    assert "abort" in Run.open(outcome.folder).native_stacks()


def test_a_guard_without_a_parent_keeps_python_stacks_only(tmp_path: Path):
    code = f"""
import ctypes, sys
from pathlib import Path
from roundoff.watch.process.supervise import ProcessGuard
guard = ProcessGuard()
guard.start(Path({str(tmp_path)!r}), rank=2)
guard.flight.note(step=1, phase="eval")
if sys.argv[1] == "crash":
    ctypes.string_at(0)
guard.close()
"""
    healthy = subprocess.run([sys.executable, "-c", code, "end"], check=False, timeout=300)
    assert healthy.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["flight-rank2.bin"]
    crashed = subprocess.run([sys.executable, "-c", code, "crash"], check=False, timeout=300)
    assert crashed.returncode == -signal.SIGSEGV
    assert " in string_at" in (tmp_path / "crash-rank2.txt").read_text()


def test_a_guard_without_a_parent_leaves_a_faulthandler_alone_that_is_on(tmp_path: Path):
    assert faulthandler.is_enabled()  # pytest's own
    guard = ProcessGuard()
    guard.start(tmp_path, rank=0)
    guard.close()
    assert faulthandler.is_enabled()
    assert not (tmp_path / "crash-rank0.txt").exists()


def test_a_guard_for_a_folder_that_cannot_be_written_is_silent(tmp_path: Path):
    guard = ProcessGuard()
    guard.start(tmp_path / "missing", rank=0)
    guard.flight.enter("forward", "a")
    guard.flight.leave("a")
    guard.close()
