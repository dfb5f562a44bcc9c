import signal

import pytest

from roundoff.runs import Run
from roundoff.watch.crash import ProcessGuard


def test_python_stacks_of_a_crash_are_kept(supervised):
    outcome = supervised("null")
    assert outcome.code == -signal.SIGSEGV
    assert [told["signal"] for told in outcome.told] == [signal.SIGSEGV]
    stacks = Run.open(outcome.folder).python_stacks()
    assert "Segmentation fault" in stacks
    assert 'supervised.py", line' in stacks
    assert " in string_at" in stacks


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


def test_a_crash_while_the_process_ends_is_told_of(supervised):
    outcome = supervised("crashes-at-its-end")
    assert outcome.code == -signal.SIGSEGV
    assert [told["signal"] for told in outcome.told] == [signal.SIGSEGV]


@pytest.mark.usefixtures("needs_gdb")
def test_native_stacks_of_a_crash_name_the_op(supervised):
    outcome = supervised("op", gdb=True)
    assert outcome.code == -signal.SIGBUS
    (told,) = outcome.told
    assert 0 < told["native_seconds"] < 15
    stacks = Run.open(outcome.folder).native_stacks()
    assert stacks.startswith("== crash: signal 7 in thread ")
    assert "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)" in stacks


@pytest.mark.usefixtures("needs_gdb")
def test_an_abort_has_native_stacks_too(supervised):
    outcome = supervised("abort", gdb=True)
    assert outcome.code == -signal.SIGABRT
    assert "abort" in Run.open(outcome.folder).native_stacks()


def test_a_guard_without_a_parent_keeps_python_stacks_only(tmp_path):
    guard = ProcessGuard()
    guard.start(tmp_path, rank=2)
    try:
        guard.flight.note(step=1, phase="eval")
    finally:
        guard.close()
    assert (tmp_path / "flight-rank2.bin").exists()
    assert (tmp_path / "crash-rank2.txt").read_text() == ""


def test_a_guard_for_a_folder_that_cannot_be_written_is_silent(tmp_path):
    guard = ProcessGuard()
    guard.start(tmp_path / "missing", rank=0)
    guard.flight.enter("forward", "a")
    guard.flight.leave("a")
    guard.close()
