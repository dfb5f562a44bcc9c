"""The words for two curves, written out."""

from __future__ import annotations

import math

from roundoff.compare.curves.curve import CurveShape, LossCurve, ShapeKind
from roundoff.compare.curves.curve_comparison import CurveComparison, compare_curves
from roundoff.report.comparisons.compared_curves import ComparedCurves, curves_verdict, shape_text

FALLING = [2.0 * 0.97**step + 0.5 + (0.01 if step % 2 else -0.01) for step in range(100)]


def compared(candidate: list[float], *, every: int = 1) -> CurveComparison:
    reference = LossCurve(name="a", steps=tuple(range(100)), values=tuple(FALLING))
    other = LossCurve(name="b", steps=tuple(range(0, every * len(candidate), every)), values=tuple(candidate))
    return compare_curves(reference, other)


def test_nan_is_reported_with_its_step() -> None:
    assert (
        curves_verdict(compared([*FALLING[:30], *[math.nan] * 70]))
        == "The candidate alone is not finite from step 30 on."
    )
    assert (
        curves_verdict(compared([*FALLING[:30], math.nan, *FALLING[31:]]))
        == "The candidate alone is not finite in step 30."
    )


def test_a_spike_is_reported_as_one() -> None:
    text = ComparedCurves(compared([*FALLING[:60], 20.0, *FALLING[61:]])).text()
    assert text.startswith(
        "The candidate spikes at step 60 and returns; otherwise the curves agree within the noise.\n"
    )
    assert "with a spike at step 60" in text


def test_agreement_is_reported_with_the_number_of_steps() -> None:
    lines = ComparedCurves(compared([loss * 1.0001 for loss in FALLING[::2]], every=2)).text().splitlines()
    assert lines[0] == "The curves agree within the reference's own noise over the 50 steps that both have."
    assert lines[1] == "  compared at 50 steps; the reference has 100, the candidate 50"
    assert "(+0.01 %; single values scatter by" in lines[-1]


def test_every_shape_has_its_words() -> None:
    def said(kind: ShapeKind, **facts: float | tuple[int, ...]) -> str:
        return shape_text(CurveShape(kind=kind, start=2.5, end=0.5, lowest=0.25, **facts))

    assert said(ShapeKind.FALLING) == "falls from 2.5 to 0.5"
    assert said(ShapeKind.FALLING, since=9) == "falls from 2.5 to 0.5, flat since step 9"
    assert said(ShapeKind.FLAT, since=0) == "is flat around 0.5"
    assert said(ShapeKind.RISING, since=9) == "rises since step 9, to 0.5 from 0.25"
    assert said(ShapeKind.EXPLODED, since=9) == "explodes at step 9, to 0.5"
    assert said(ShapeKind.SPIKING, spikes=(4, 9)) == "goes from 2.5 to 0.5, with 2 spikes at step 4, 9"
    assert said(ShapeKind.NON_FINITE, since=9, num_nonfinite=3, first_nonfinite=9) == "is not finite since step 9"
    assert said(ShapeKind.FALLING, num_nonfinite=1, first_nonfinite=4).endswith("not finite in 1 step, first in step 4")
