import math

import pytest

from roundoff.formats import RoundingEffect, effect_of, format_named


@pytest.mark.parametrize(
    ("value", "name", "result", "outcome"),
    [
        (1.5, "e4m3", 1.5, "exact"),
        (1.6, "e4m3", 1.625, "rounded"),
        (70000.0, "fp16", math.inf, "overflow to infinity"),
        (65519.0, "fp16", 65504.0, "saturated"),
        (-70000.0, "e4m3", -448.0, "saturated"),
        (math.inf, "e4m3", 448.0, "saturated"),
        (math.inf, "fp16", math.inf, "exact"),
        (70000.0, "e5m2fnuz", math.nan, "overflow to nan"),
        (1e-9, "fp16", 0.0, "underflow to zero"),
        (3e-5, "fp16", 503 * 2.0**-24, "subnormal"),
        (2.0**-24, "fp16", 2.0**-24, "exact"),
        (math.nan, "e2m1", math.nan, "exact"),
        (-0.0, "e4m3fnuz", 0.0, "exact"),
        (70000.0, "mxfp8", 73728.0, "rounded"),
        (7.8, "mxfp4", 6.0, "saturated"),
        (2.0, "q1.7", 127 / 128, "saturated"),
        (0.1, "q1.7", 13 / 128, "rounded"),
    ],
)
def test_says_what_happened(value, name, result, outcome):
    effect = effect_of(value, format_named(name))
    assert effect.outcome == outcome
    assert effect.value == pytest.approx(result, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("value", "name", "error"),
    [
        (1.5, "e4m3", 0.0),
        (1.6, "e4m3", 0.015625),
        (1e-9, "fp16", 1.0),
        (7e4, "fp16", math.inf),
        (math.nan, "fp16", 0.0),
    ],
)
def test_measures_how_far_off_it_is(value, name, error):
    assert effect_of(value, format_named(name)).relative_error == pytest.approx(error)


def test_an_effect_is_a_value():
    assert effect_of(1.0, format_named("fp16")) == RoundingEffect(value=1.0, relative_error=0.0, outcome="exact")
