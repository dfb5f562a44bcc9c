"""A copy that computes targets and never changes is reported, mildly in a short training; a reference is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.model.stale_target import stale_targets
from roundoff.runs import BatchFacts, Run, Severity, TargetTwinProbe
from tests.diagnose.findings import only
from tests.run_folders import tensor, write_run


def run_with(folder: Path, *, step: int = 300, **changes: Any) -> Run:
    facts: dict[str, Any] = {
        "site": "Net:", "parameter": "0.weight", "num_calls": 256, "has_moved": False, "model_has_moved": True,
        "inputs": ("b",),
    }  # fmt: skip
    probe = TargetTwinProbe(step=step, **{**facts, **changes})
    return write_run(folder, BatchFacts(step=0, tensors=(tensor(hash="a"),)), probe)


@pytest.mark.parametrize("step", [300, 5000])
def test_the_copy_is_named_in_a_note_since_it_may_be_meant_to_stay(tmp_path: Path, step: int) -> None:
    finding = only(stale_targets, run_with(tmp_path / "run", step=step))
    assert (finding.rule, finding.site, finding.severity) == ("target-never-updated", "Net:", Severity.NOTE)


@pytest.mark.parametrize("changes", [{"has_moved": True}, {"model_has_moved": False}, {"inputs": ("a", "b")}])
def test_copies_that_follow_and_references_are_fine(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert stale_targets(run_with(tmp_path / "run", **changes)) == []


def test_a_copy_that_always_has_the_weights_of_the_model_is_reported(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", has_moved=True, num_calls=129, num_pairs=2, num_current=2)
    finding = only(stale_targets, run)
    assert (finding.rule, finding.severity) == ("target-always-current", Severity.WARNING)


def test_a_copy_that_was_current_now_and_then_is_fine(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", has_moved=True, num_calls=257, num_pairs=3, num_current=2)
    assert stale_targets(run) == []
