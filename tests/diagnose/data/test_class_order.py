"""Batches of one class each are reported, those that chance or the kind of training explains are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roundoff.diagnose.data.class_order import classes_in_order
from roundoff.runs import BatchFacts, Run, Severity
from tests.diagnose.findings import only
from tests.run_folders import tensor, write_run


def run_with(folder: Path, classes: Sequence[tuple[float, float]], *, size: int = 8) -> Run:
    batches = [
        BatchFacts(
            step=step,
            tensors=(tensor(),),
            targets=(tensor("target", (size,), "int64", min=low, max=high),),
            criterion="cross_entropy",
        )
        for step, (low, high) in enumerate(classes)
    ]
    return write_run(folder, batches)


def test_batches_in_the_order_of_their_classes_are_named(tmp_path: Path) -> None:
    finding = only(classes_in_order, run_with(tmp_path / "run", [(0, 0)] * 4 + [(0, 1)] + [(1, 1)] * 4 + [(2, 2)] * 3))
    assert (finding.rule, finding.severity, finding.step) == ("classes-in-order", Severity.WARNING, 0)
    assert "11 of 12 observed batches have targets of one class only, 3 different ones in all" in finding.why


def test_most_observed_batches_may_be_of_the_first_class(tmp_path: Path) -> None:
    finding = only(classes_in_order, run_with(tmp_path / "run", [(0, 0)] * 20 + [(1, 1), (3, 3), (4, 4)], size=16))
    assert "23 of 23 observed batches have targets of one class only, 4 different ones in all" in finding.why


def test_mixed_batches_a_single_class_and_a_rare_one_are_fine(tmp_path: Path) -> None:
    assert classes_in_order(run_with(tmp_path / "mixed", [(0, 2)] * 12)) == []
    assert classes_in_order(run_with(tmp_path / "single", [(1, 1)] * 12)) == []
    rare = [(0, 0)] * 19 + [(1, 1)]
    assert classes_in_order(run_with(tmp_path / "rare", rare)) == []
    assert classes_in_order(run_with(tmp_path / "small", [(0, 0), (1, 1)] * 6, size=2)) == []
