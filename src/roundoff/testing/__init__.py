"""Numerics in tests: a training that must be healthy, ops that must be exact, runs that must agree.

The fixture `roundoff_healthy` and the marker `numerics` come with pytest's plugin, which is installed with roundoff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.testing.assertions import HealthyTraining as HealthyTraining
    from roundoff.testing.assertions import RunsDiffer as RunsDiffer
    from roundoff.testing.assertions import assert_same_run as assert_same_run

_HOMES = {
    "HealthyTraining": "roundoff.testing.assertions",
    "RunsDiffer": "roundoff.testing.assertions",
    "assert_same_run": "roundoff.testing.assertions",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
