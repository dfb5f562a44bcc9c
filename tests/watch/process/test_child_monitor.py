import signal

import pytest

from roundoff.runs import Run


def test_a_hang_is_reported_with_the_python_stacks_though_the_gil_is_held(supervised):
    outcome = supervised("hangs", HANG_AFTER="0.5", ON_HANG="stop")
    assert outcome.code == 1
    (ending,) = outcome.reported
    assert (ending["signal"], ending["exit_code"], ending["was_stopped"]) == (None, None, True)
    assert 0.5 <= ending["seconds_without_progress"] < 5
    run = Run.open(outcome.folder)
    ending = run.ending()
    assert ending is not None
    assert ending.signal == signal.SIGTERM
    stacks = run.python_stacks()
    assert stacks.startswith("== hang: no progress for ")
    assert 'supervised.py", line' in stacks
    assert " in train" in stacks


@pytest.mark.usefixtures("needs_gdb")
def test_a_hang_has_native_stacks(supervised):
    outcome = supervised("hangs", gdb=True, HANG_AFTER="0.5", ON_HANG="stop")
    stacks = Run.open(outcome.folder).native_stacks()
    assert stacks.startswith("== hang: no progress for ")
    assert "sleep" in stacks


def test_a_hang_that_goes_on_again_is_noted_as_such(supervised):
    outcome = supervised("hangs-for-a-while", HANG_AFTER="0.5")
    assert outcome.code == 0
    (ending,) = outcome.reported
    assert (ending["has_gone_on"], ending["was_stopped"]) == (False, False)
    ending = Run.open(outcome.folder).ending()
    assert ending is not None
    assert (ending.has_gone_on, ending.exit_code) == (True, 0)
    assert ending.seconds_without_progress is not None
    assert 1.0 < ending.seconds_without_progress < 4


def test_a_run_that_is_over_does_not_hang(supervised):
    outcome = supervised("is-slow-to-end", HANG_AFTER="0.5")
    assert (outcome.code, outcome.reported) == (0, [])


def test_no_hang_is_looked_for_unless_requested(supervised):
    outcome = supervised("hangs-for-a-while")
    assert (outcome.code, outcome.reported) == (0, [])


def test_a_script_that_loads_modules_and_data_before_it_trains_does_not_hang(supervised):
    outcome = supervised("loads", HANG_AFTER="1.5")
    assert (outcome.code, outcome.reported) == (0, [])


def test_a_script_that_waits_before_it_trains_hangs(supervised):
    outcome = supervised("hangs-before-it-trains", HANG_AFTER="1")
    assert outcome.code == 0
    assert len(outcome.reported) == 1
