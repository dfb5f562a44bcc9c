"""Metrics that measure something else are named; those that look alike are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.data.metrics import (
    broadcast_metrics,
    counted_ignored_labels,
    evaluations_in_train_mode,
    wrong_axes,
    wrong_pairs,
    wrong_thresholds,
)
from roundoff.diagnose.rule import Rule
from roundoff.runs import BatchFacts, EvalMatchProbe, MetricProbe, ModuleFacts, Structure
from tests.run_folders import write_run

LOGITS = BatchFacts(step=0, criterion="BCEWithLogitsLoss")
CLASSES = BatchFacts(step=0, criterion="cross_entropy", num_classes=10, criterion_settings={"ignore_index": -100})


def line(kind: Any, **facts: Any) -> MetricProbe:
    return MetricProbe(step=5, kind=kind, source="train.py:9", num_calls=4, **facts)


def match(**facts: Any) -> EvalMatchProbe:
    return EvalMatchProbe(step=5, num_samples=200, names={"0": 1, "1": 0}, **facts)


@pytest.mark.parametrize(
    ("find", "batch", "probe", "is_found"),
    [
        (wrong_thresholds, LOGITS, line("threshold", threshold=0.5, min=-3.0, max=2.0), True),
        (wrong_thresholds, LOGITS, line("threshold", threshold=0.0, min=-3.0, max=2.0), False),
        (wrong_thresholds, LOGITS, line("threshold", threshold=0.5, min=0.1, max=0.9), False),
        (wrong_thresholds, LOGITS, line("threshold", threshold=0.5, min=-3.0, max=2.0, functions=("sigmoid",)), False),
        (wrong_axes, CLASSES, line("choice", axis=0, shape=(50, 10)), True),
        (wrong_axes, CLASSES, line("choice", axis=1, shape=(50, 10)), False),
        (wrong_axes, CLASSES, line("choice", axis=0, shape=(10, 10)), False),
        (broadcast_metrics, CLASSES, line("match", shape=(8,), other_shape=(8, 1)), True),
        (broadcast_metrics, CLASSES, line("match", shape=(8, 3), other_shape=(8, 1)), False),
        (counted_ignored_labels, CLASSES, line("match", counts={"-100": 40, "1": 60}, counts_all=True), True),
        (counted_ignored_labels, CLASSES, line("match", counts={"-100": 40, "1": 60}), False),
        (counted_ignored_labels, CLASSES, line("match", counts={"0": 40, "1": 60}, counts_all=True), False),
        (wrong_pairs, CLASSES, match(share=0.2, renamed_share=0.3, own_share=0.9), True),
        (wrong_pairs, CLASSES, match(share=0.1, renamed_share=0.9, num_moved=2), True),
        (wrong_pairs, CLASSES, match(share=0.1, renamed_share=0.9, num_moved=1), False),
        (wrong_pairs, CLASSES, match(share=0.85, renamed_share=0.9, own_share=0.9, num_moved=2), False),
    ],
)
def test_a_metric_is_named_where_it_measures_something_else(
    tmp_path: Path, find: Rule, batch: BatchFacts, probe: MetricProbe | EvalMatchProbe, is_found: bool
) -> None:
    assert len(find(write_run(tmp_path / "run", batch, probe))) == is_found


@pytest.mark.parametrize(
    ("kind", "num_training", "is_found"), [("Dropout", 4, True), ("Dropout", 3, False), ("ReLU", 4, False)]
)
def test_an_evaluation_in_training_mode_is_named_where_the_mode_matters(
    tmp_path: Path, kind: str, num_training: int, is_found: bool
) -> None:
    look = Structure(step=0, modules=(ModuleFacts(site="1", kind=kind, training=True),))
    run = write_run(tmp_path / "run", look, line("match", num_training=num_training))
    assert len(evaluations_in_train_mode(run)) == is_found
