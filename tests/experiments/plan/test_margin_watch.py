"""When a margin that is followed over a training is worth a warning."""

import pytest

from roundoff.experiments.plan.margin_watch import MarginHistory
from roundoff.sensitivity.margins import Margin


def margin(step: int, bits: float, *, site: str = "fc", value: float = 100.0) -> Margin:
    return Margin(step=step, site=site, part="result", fmt="fp16", kind="overflow", bits=bits, value=value)


def history_of(*bits: float, every: int = 100) -> MarginHistory:
    history = MarginHistory()
    for number, each in enumerate(bits):
        history.add(every * number, [margin(every * number, each)])
    return history


def test_a_margin_that_stays_is_no_warning():
    assert history_of(10.0, 9.8, 10.1, 9.9, 9.7, 9.9).is_good


def test_a_margin_that_shrinks_steadily_is_reported_once_with_the_step_of_its_limit():
    history = history_of(10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0)
    assert [(each.kind, each.margin.step) for each in history.warnings] == [("shrinks", 500)]
    assert history.warnings[0].text == (
        "the result of fc in fp16 reaches 100: was 100 at step 200; at this pace a quarter of the largest number, "
        "65504, is reached near step 1000"
    )
    assert not history.is_good


def test_a_margin_that_shrinks_so_slowly_that_the_training_would_have_to_double_is_none():
    assert history_of(20.0, 19.6, 19.2, 18.8, 18.4).is_good


def test_a_limit_that_is_reached_is_reported_once_also_after_a_warning_before():
    history = history_of(6.0, 5.0, 4.0, 3.0, 1.0, -1.0, -2.0)
    assert [(each.kind, each.margin.step) for each in history.warnings] == [("shrinks", 300), ("reached", 500)]


def test_each_tensor_has_its_own_history():
    history = MarginHistory()
    history.add(0, [margin(0, 5.0), margin(0, -1.0, site="head")])
    assert [each.margin.site for each in history.warnings] == ["head"]
    assert history.text("planned.toml") == (
        "1 margin of planned.toml reached a limit or shrinks: 1 measured step, 0 to 0.\n\n"
        "  smallest   what is left to the limit at the last measured step\n"
        "  -1.0 bits  the result of head in fp16 reaches 100; -1.0 at step 0\n"
        "  5.0 bits   the result of fc in fp16 reaches 100; 5.0 at step 0"
    )


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (None, "No margin of half was measured: the training took no step with a narrow layer."),
        ("it broke", "No margin of half was measured: it broke."),
    ],
)
def test_nothing_measured_is_not_good(failure: str | None, text: str):
    history = MarginHistory(failure=failure)
    assert not history.is_good
    assert history.text("half").splitlines()[0] == text
