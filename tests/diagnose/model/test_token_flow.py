"""What the experiments with tokens showed becomes a finding only where it cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.model.token_flow import wrong_token_flow
from roundoff.runs import TokenFlowProbe
from tests.run_folders import losses, write_run

GOOD: dict[str, Any] = {
    "is_next_token": True, "sees_later": False, "sees_first": True, "sees_order": True, "sees_padding": None,
    "sees_tokens": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"sees_later": True}, "causal-leak"),
        ({"sees_later": True, "is_next_token": False}, None),
        ({"sees_padding": True, "sees_tokens": False}, "mask-inverted"),
        ({"sees_padding": True, "sees_tokens": True}, "padding-seen"),
        ({"sees_padding": False, "sees_tokens": True}, None),
        ({"sees_order": False}, "order-ignored"),
        ({"sees_order": False, "sees_first": False}, None),
    ],
)
def test_a_dependence_that_cannot_be_meant_is_reported(
    tmp_path: Path, changes: dict[str, Any], rule: str | None
) -> None:
    probe = TokenFlowProbe(step=7, length=12, **(GOOD | changes))
    found = wrong_token_flow(write_run(tmp_path / "run", losses(3.0, *[2.9] * 59), probe))
    assert [finding.rule for finding in found] == ([] if rule is None else [rule])


def test_a_model_that_learns_without_the_order_does_not_need_it(tmp_path: Path) -> None:
    probe = TokenFlowProbe(step=7, length=12, **(GOOD | {"sees_order": False}))
    run = write_run(tmp_path / "run", losses(3.0, *[0.5] * 59), probe)
    assert wrong_token_flow(run) == []


def test_a_young_training_is_not_judged_by_what_it_has_learned(tmp_path: Path) -> None:
    probe = TokenFlowProbe(step=7, length=12, **(GOOD | {"sees_order": False}))
    assert wrong_token_flow(write_run(tmp_path / "run", losses(*[3.0] * 9), probe)) == []
