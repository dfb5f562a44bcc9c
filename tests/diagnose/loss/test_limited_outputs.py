"""Outputs that cannot be what the loss asks for are named; limits that targets respect are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.loss.cancelled_terms import cancelled_terms
from roundoff.diagnose.loss.class_weights import inverted_weights
from roundoff.diagnose.loss.limited_outputs import limited_outputs
from roundoff.runs import BatchFacts, CriterionCall, TensorFacts
from tests.run_folders import write_run


def seen(function: str, *, step: int = 0, **facts: Any) -> CriterionCall:
    return CriterionCall(step=step, function=function, source="train.py:7", **facts)


@pytest.mark.parametrize(
    ("function", "facts", "code"),
    [
        ("mse_loss", {"limited_by": "relu", "num_targets": 10, "num_unreachable": 4}, "outputs-limited"),
        ("mse_loss", {"limited_by": "relu", "num_targets": 100, "num_unreachable": 2}, None),
        ("cross_entropy", {"limited_by": "cosine", "input_shape": (8, 8)}, "outputs-limited"),
        ("cross_entropy", {"limited_by": "cosine", "limit_factor": 0.07, "input_shape": (8, 8)}, "outputs-limited"),
        ("cross_entropy", {"limit_factor": 15.0, "input_shape": (8, 8)}, None),
        ("cross_entropy", {"limited_by": "relu", "input_shape": (8, 3)}, "outputs-limited"),
        ("cross_entropy", {"input_shape": (8, 3)}, None),
        ("l1_loss", {"limited_by": "dropout"}, "dropout-on-output"),
        ("cross_entropy", {"has_own_diagonal": True, "input_shape": (8, 8)}, "contrast-with-itself"),
    ],
)
def test_limits_are_named_where_the_loss_needs_more(
    tmp_path: Path, function: str, facts: dict[str, Any], code: str | None
) -> None:
    found = limited_outputs(write_run(tmp_path / "run", seen(function, **facts)))
    assert [finding.rule for finding in found] == ([] if code is None else [code])


@pytest.mark.parametrize(("weights", "is_found"), [((0.9, 0.1), True), ((0.56, 5.0), False), ((0.5, 0.5), False)])
def test_weights_that_grow_with_the_counts_are_named(
    tmp_path: Path, weights: tuple[float, ...], is_found: bool
) -> None:
    target = TensorFacts(place="target", shape=(200,), dtype="int64", counts={"0": 180, "1": 20}, is_target=True)
    batch = BatchFacts(step=0, targets=(target,))
    run = write_run(tmp_path / "run", batch, seen("cross_entropy", class_weights=weights))
    assert len(inverted_weights(run)) == is_found


def test_a_difference_that_is_0_in_two_steps_is_named_and_in_one_is_not(tmp_path: Path) -> None:
    first, later = (seen("sub", step=step, cancels=True) for step in (0, 30))
    assert cancelled_terms(write_run(tmp_path / "one", first)) == []
    (finding,) = cancelled_terms(write_run(tmp_path / "two", [first, later]))
    assert (finding.rule, finding.source) == ("terms-cancel", "train.py:7")
