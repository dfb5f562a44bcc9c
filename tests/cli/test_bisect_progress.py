from dataclasses import replace

import pytest

from roundoff.cli.bisect import BisectProgress, bisect_line, known_text
from roundoff.experiments.bisect.bisect_options import BisectEvent

RUN = BisectEvent(
    what="5 sites wide", verdict="good, finite, loss 1.3", num_runs=3, at_most=8, known=("a", "b"), seconds_left=150.0
)


def test_a_run_is_one_line_with_its_verdict_what_is_known_and_the_time_left():
    assert (
        bisect_line(RUN)
        == "[3/8] 5 sites wide: good, finite, loss 1.3; culprits among 2 sites: a, b; at most 2 min left"
    )


def test_a_run_before_the_search_and_one_that_was_kept_say_so():
    event = BisectEvent(what="unchanged", verdict="loss nan in step 3", is_new=False)
    assert bisect_line(event) == "[before] unchanged: loss nan in step 3 (kept)"


def test_a_long_list_of_suspects_is_cut():
    assert known_text(tuple("abcdefg")) == "culprits among 7 sites: a, b, c, d and 3 more"
    assert known_text(("a",)) == "culprit a"
    assert known_text(()) == ""


def test_a_line_has_as_many_suspects_as_fit_into_100_columns():
    long = tuple(f"model.decoder.layers.{number}.attention" for number in range(3))
    line = bisect_line(replace(RUN, known=long))
    assert line.endswith("good, finite, loss 1.3; culprits among 3 sites; at most 2 min left")
    line = bisect_line(replace(RUN, known=("model.layers.1.mlp", "model.layers.2.mlp", "head"), seconds_left=None))
    assert line.endswith("; culprits among 3 sites: model.layers.1.mlp and 2 more")
    assert len(bisect_line(BisectEvent(what="word " * 50, verdict=""))) == 100


def test_an_interrupt_says_what_is_known_and_how_to_go_on(capsys: pytest.CaptureFixture[str]):
    progress = BisectProgress(resume="roundoff bisect train.py")
    progress.show(RUN)
    progress.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "interrupted after 3 runs of the search; culprits among 2 sites: a, b",
        "every run is kept. To resume: roundoff bisect train.py",
    ]


def test_an_interrupt_before_the_first_run_says_that_nothing_is_known(capsys: pytest.CaptureFixture[str]):
    progress = BisectProgress(resume="roundoff bisect train.py")
    progress.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err.startswith("interrupted after 0 runs of the search; nothing is known yet\n")
