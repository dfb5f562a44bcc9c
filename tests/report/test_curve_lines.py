"""Loss and loss scale as curves of one line."""

from __future__ import annotations

import math

from roundoff.report.loss_curve import curve_lines
from roundoff.runs import Metrics


def test_a_training_that_broke_shows_where() -> None:
    losses = [2.0, 1.5, 1.0, 0.5, 0.25, 0.2, math.nan, math.nan]
    (line,) = curve_lines([Metrics(step=step, loss=loss) for step, loss in enumerate(losses)], indent="  ")
    assert line == "  loss   █▆▄▂▁▁xx  2 to nan; not finite from step 6 on"


def test_a_training_that_recovered_does_not_count_as_broken() -> None:
    losses = [2.0, 1.5, math.nan, 0.5, 0.25, math.nan, 0.2, 0.1]
    (line,) = curve_lines([Metrics(step=step, loss=loss) for step, loss in enumerate(losses)])
    assert line.endswith("  2 to 0.1; not finite in 2, first in step 2")


def test_a_training_without_any_finite_loss_says_so() -> None:
    (line,) = curve_lines([Metrics(step=step, loss=math.nan) for step in range(8)])
    assert line == "loss   xxxxxxxx  nan to nan; never finite"


def test_a_loss_scale_is_shown_once_it_has_moved() -> None:
    steady = [Metrics(step=step, loss=1.0, loss_scale=1024.0) for step in range(8)]
    moved = [*steady, Metrics(step=8, loss=1.0, loss_scale=512.0)]
    assert len(curve_lines(steady)) == 1
    assert curve_lines(moved)[1] == "scale  ████████▁  1.02e+03 to 512"


def test_a_few_steps_are_no_curve() -> None:
    assert curve_lines([Metrics(step=step, loss=1.0) for step in range(7)]) == []
    assert curve_lines([]) == []


def test_a_curve_fits_a_narrow_screen() -> None:
    losses = [*(1.0 / (step + 1) for step in range(400)), *[math.inf] * 100]
    (line,) = curve_lines([Metrics(step=step, loss=loss) for step, loss in enumerate(losses)], width=60, indent="  ")
    assert len(line) <= 60
    assert line.endswith("x  1 to inf; not finite from step 400 on")
