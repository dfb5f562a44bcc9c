import faulthandler
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.diagnose.process.deaths import process_deaths
from roundoff.runs import Run
from roundoff.watch.process.process_guard import ProcessGuard

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
from roundoff.watch.process.process_guard import ProcessGuard
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
