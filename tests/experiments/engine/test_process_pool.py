from roundoff.errors import SweepError
from roundoff.experiments.engine.process_pool import Task, TaskOutcome, error_in_one_line


def test_an_error_of_ours_keeps_its_first_two_lines():
    error = SweepError.explain("What happened.", why="a reason.", fix="a fix.")
    assert error_in_one_line(error) == "SweepError: What happened. why: a reason."


def test_an_error_without_words_is_named():
    assert error_in_one_line(KeyError()) == "KeyError"


def test_an_outcome_is_good_unless_it_failed():
    task = Task(name="one", call=eval, argument="1")
    assert TaskOutcome(task=task, value=0).is_good
    assert not TaskOutcome(task=task, failure="ValueError").is_good
