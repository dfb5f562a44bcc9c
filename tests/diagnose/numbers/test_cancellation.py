"""Subtractions that leave rounding errors for a root to work on are named; small differences by themselves are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from roundoff.diagnose.numbers.rounding_damage import cancellations
from tests.diagnose.planted import BAD_STEP, mlp_with, train


def one_pass(x: Tensor) -> Tensor:
    x = 50 + 1e-3 * x
    variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2
    return (x - x.mean(-1, keepdim=True)) / (variance.abs() + 1e-8).sqrt()


def two_passes(x: Tensor) -> Tensor:
    x = 50 + 1e-3 * x
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-8).sqrt()


def straight_through(x: Tensor) -> Tensor:
    return x + ((x * 3.0 / 3.0) - x * 1.0).detach()


def test_a_one_pass_variance_is_named_at_its_subtraction(tmp_path: Path) -> None:
    (finding,) = cancellations(train(mlp_with(one_pass), tmp_path / "run"))
    assert (finding.rule, finding.step, finding.site, finding.op) == ("cancellation", BAD_STEP, "1.1", "aten.sub#0")


@pytest.mark.parametrize(
    "function", [two_passes, straight_through], ids=["two passes", "a difference that stays small"]
)
def test_differences_that_do_no_harm_are_silent(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    assert cancellations(train(mlp_with(function), tmp_path / "run")) == []
