import math
import re

import pytest

from roundoff.report.loss_curve import loss_curve, loss_sentence, thin_curve

NAN = math.nan


def lines_of(losses: list[float]) -> list[list[tuple[float, float]]]:
    """Return the places of each line of a curve."""
    lines = re.findall(r'points="([^"]*)"', loss_curve(losses))
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_a_falling_loss_goes_from_the_upper_left_to_the_lower_right():
    assert lines_of([3.0, 2.0, 1.0]) == [[(2.0, 2.0), (60.0, 14.0), (118.0, 26.0)]]


def test_the_line_breaks_where_the_loss_is_not_finite():
    assert [len(line) for line in lines_of([3.0, 2.0, NAN, 1.0, 1.0, 1.0])] == [2, 3]


def test_the_first_step_that_is_not_finite_is_marked():
    assert re.findall(r'<line x1="([^"]*)"', loss_curve([3.0, 2.0, math.inf, NAN, NAN])) == ["60.0"]
    assert "<line" not in loss_curve([3.0, 2.0])


def test_the_ends_are_reported_as_numbers():
    assert "<figcaption>2.35 → 0.12</figcaption>" in loss_curve([2.3456, 1.0, 0.12])
    assert "<figcaption>2.3 → NaN</figcaption>" in loss_curve([2.3, NAN])


@pytest.mark.parametrize("losses", [[1.0], [NAN], [1.0, 1.0], [-1.7e308, 1.7e308], [0.0, 5e-324], [math.inf, 1.0]])
def test_strange_losses_are_drawn_inside_the_picture(losses: list[float]):
    curve = loss_curve(losses)
    assert "nan" not in re.sub(r'aria-label="[^"]*"|<figcaption>.*', "", curve)
    assert all(0 <= x <= 120 and 0 <= y <= 28 for line in lines_of(losses) for x, y in line)


def test_a_long_curve_keeps_its_spike_and_its_ends():
    losses = [1.0] * 50_000
    losses[31_234] = 9.0
    losses[40_001] = NAN
    points = thin_curve(losses)
    assert len(points) < 300
    assert (31_234, 9.0) in points
    assert 40_001 in [step for step, _ in points]


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        ([2.0], "loss 2 to 2 in 1 step"),
        ([2.0, 0.25], "loss 2 to 0.25 in 2 steps"),
        ([NAN, math.inf], "no finite loss in 2 steps"),
    ],
)
def test_the_sentence_for_those_who_cannot_see_it(losses: list[float], sentence: str):
    assert loss_sentence(losses) == sentence
    assert f'aria-label="{sentence}"' in loss_curve(losses)
