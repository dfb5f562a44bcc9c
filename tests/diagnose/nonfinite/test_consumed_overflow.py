"""Infinities that are divided away are named with the op that made them; saturating functions are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from roundoff.diagnose.nonfinite.consumed_overflow import consumed_overflows
from tests.diagnose.planted import BAD_STEP, mlp_with, train


def test_the_square_whose_infinity_is_divided_away_is_named(tmp_path: Path) -> None:
    def normalise(x: Tensor) -> Tensor:
        x = x * 1000
        return x / (x * x).sum(-1, keepdim=True).sqrt()

    run = train(mlp_with(normalise), tmp_path / "run", dtype=torch.float16)
    (finding,) = consumed_overflows(run)
    assert (finding.rule, finding.step, finding.site, finding.op) == (
        "consumed-overflow", BAD_STEP, "1.1", "aten.mul#1",
    )  # fmt: skip
    assert "exceed 65504" in finding.why


@pytest.mark.parametrize(
    "function",
    [lambda x: 1 / (1 + torch.exp(-1000 * x.detach())) + x, lambda x: x / (x.float() * 1000).norm().half(), torch.tanh],
    ids=["a sigmoid written out", "a norm computed wide", "nothing infinite"],
)
def test_results_that_are_as_good_as_right_are_silent(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    assert consumed_overflows(train(mlp_with(function), tmp_path / "run", dtype=torch.float16)) == []
