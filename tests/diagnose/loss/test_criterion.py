"""What a loss function is fed with is reported where it cannot be meant, and silent where it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.loss.criterion import broadcast_losses, misaligned_labels, uneven_accumulation, wrong_input_kinds
from roundoff.runs import CriterionCall
from tests.run_folders import call, calls_by_step, write_run


def seen(function: str = "mse_loss", **facts: Any) -> CriterionCall:
    return CriterionCall(step=0, function=function, source="train.py:7", **facts)


@pytest.mark.parametrize(
    ("given", "target", "settings", "is_found"),
    [
        ((8, 1), (8,), {"reduction": "mean"}, True),
        ((8,), (8, 1), {"reduction": "none"}, True),
        ((8, 1), (8, 1), {}, False),
        ((8, 5), (8, 1), {}, False),
        ((8, 1), (), {}, False),
        ((8, 1, 4), (6, 4), {"reduction": "none"}, False),
        ((8, 1, 4), (6, 4), {"reduction": "mean"}, True),
    ],
)
def test_a_loss_with_more_elements_than_both_sides_is_reported(
    tmp_path: Path, given: tuple[int, ...], target: tuple[int, ...], settings: dict[str, Any], is_found: bool
) -> None:
    run = write_run(tmp_path / "run", seen(input_shape=given, target_shape=target, settings=settings))
    assert len(broadcast_losses(run)) == is_found


def test_the_shapes_and_the_line_are_named(tmp_path: Path) -> None:
    (finding,) = broadcast_losses(write_run(tmp_path / "run", seen(input_shape=(8, 1), target_shape=(8,))))
    assert finding.source == "train.py:7"
    assert all(shape in finding.why for shape in ("(8, 1)", "(8,)", "(8, 8)"))
    assert (
        finding.fix
        == "drop the last dimension of the prediction, .squeeze(-1), or add it to the target, .unsqueeze(-1)"
    )


@pytest.mark.parametrize(
    ("function", "facts", "got"),
    [
        ("nll_loss", {"made_by": "softmax"}, "probabilities"),
        ("nll_loss", {"rows_sum_to_one": True, "input_min": 0.0}, "probabilities"),
        ("nll_loss", {"made_by": "log_softmax", "rows_are_logarithms": True, "input_min": -3.0}, None),
        ("kl_div", {"made_by": "softmax"}, "probabilities"),
        ("kl_div", {"target_min": -4.0, "target_max": -0.1}, "their logarithms"),
        ("kl_div", {"target_min": -4.0, "target_max": -0.1, "settings": {"log_target": True}}, None),
        ("binary_cross_entropy_with_logits", {"made_by": "sigmoid"}, "probabilities"),
        ("binary_cross_entropy_with_logits", {"input_min": 0.0, "input_max": 1.0}, None),
        ("binary_cross_entropy", {"made_by": "sigmoid"}, None),
        ("cross_entropy", {"made_by": "softmax"}, None),
        ("ctc_loss", {"input_min": -3.0, "input_max": 2.5}, "logits"),
        ("ctc_loss", {"input_max": -0.1, "num_blank": 3, "num_counted": 20}, "the blank 3 times among 20 targets"),
        ("ctc_loss", {"input_max": -0.1, "num_blank": 0, "num_counted": 20}, None),
        ("binary_cross_entropy_with_logits", {"target_min": 0.0, "target_max": 255.0}, "targets from 0 to 255"),
        ("binary_cross_entropy_with_logits", {"target_min": 0.1, "target_max": 0.9}, None),
        ("mse_loss", {"target_min": 0.0, "target_max": 255.0}, None),
    ],
)
def test_numbers_of_the_wrong_kind_are_reported(
    tmp_path: Path, function: str, facts: dict[str, Any], got: str | None
) -> None:
    found = wrong_input_kinds(write_run(tmp_path / "run", seen(function, input_shape=(8, 3), **facts)))
    assert [finding.title for finding in found] == ([] if got is None else [found[0].title])
    assert got is None or f"gets {got} instead of" in found[0].title


def offsets(**shares: float) -> dict[str, float]:
    return {"-1": 0.1, "0": 0.1, "1": 0.1, "2": 0.1} | {
        key.replace("m", "-").strip("k"): x for key, x in shares.items()
    }


@pytest.mark.parametrize(
    ("all_shares", "offset"),
    [
        ([{"k2": 1.0}], 2),
        ([{"km1": 1.0}], -1),
        ([{"k1": 1.0}], None),
        ([{"k0": 1.0}], None),
        ([{"k1": 1.0}, {"k2": 1.0}], None),
        ([{"k2": 1.0, "k1": 0.95}], None),
        ([{"k2": 0.8}], None),
    ],
    ids=["twice", "backwards", "next", "same", "several heads", "repeated tokens", "noise"],
)
def test_targets_at_another_distance_than_the_next_token_are_reported(
    tmp_path: Path, all_shares: list[dict[str, float]], offset: int | None
) -> None:
    run = write_run(tmp_path / "run", [seen("cross_entropy", offsets=offsets(**shares)) for shares in all_shares])
    found = misaligned_labels(run)
    assert [finding.evidence[0]["offset"] for finding in found] == ([] if offset is None else [offset])


@pytest.mark.parametrize(
    ("counts", "reduction", "is_found"),
    [((32, 72, 112), "mean", True), ((100, 110), "mean", False), ((32, 112), "sum", False), ((32,), "mean", False)],
)
def test_means_over_different_numbers_of_targets_are_reported(
    tmp_path: Path, counts: tuple[int, ...], reduction: str, is_found: bool
) -> None:
    parts = [seen("cross_entropy", num_counted=num, settings={"reduction": reduction}) for num in counts]
    calls = calls_by_step([[*[call("backward")] * len(counts), call("step", optimizer="SGD")]])
    assert len(uneven_accumulation(write_run(tmp_path / "run", parts, calls))) == is_found


def test_two_losses_of_one_backward_are_no_microbatches(tmp_path: Path) -> None:
    parts = [seen("cross_entropy", num_counted=num, settings={"reduction": "mean"}) for num in (32, 112)]
    calls = calls_by_step([[call("backward"), call("step", optimizer="SGD")]])
    assert uneven_accumulation(write_run(tmp_path / "run", parts, calls)) == []
