"""Training samples in an evaluation are reported where its other samples are new and all training data is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundoff.diagnose.data.overlap import overlapping_samples
from roundoff.runs import BatchFacts, HashColumns, Run
from tests.diagnose.findings import only
from tests.run_folders import hash_rows, tensor, write_run

PLACE = "<model>[0]"
TRAINED = list(range(40))


def run_with(folder: Path, evaluated: list[int], *, steps: int = 8, whole: bool = False, shuffled: bool = False) -> Run:
    """Train on 40 samples, ten in each step, and evaluate after step 3."""
    numbers = [
        (step, TRAINED[step % 4 * 10 :][:10] if not shuffled else range(step * 10, step * 10 + 10))
        for step in range(steps)
    ]
    rows = [(step, "sample", PLACE, number) for step, part in numbers for number in part]
    low, high = (-3.0, 3.0) if whole else (-2.5, 2.5)
    batches = [BatchFacts(step=step, tensors=(tensor(PLACE, (10, 8), min=low, max=high),)) for step in range(steps)]
    return write_run(folder, batches, hash_rows(rows), looked(3, evaluated))


def looked(step: int, numbers: list[int]) -> HashColumns:
    found = hash_rows([(step, "eval-sample", PLACE, number) for number in numbers])
    found.microbatch[:] = np.int16(1)
    return found


def test_samples_of_both_are_counted(tmp_path: Path) -> None:
    finding = only(overlapping_samples, run_with(tmp_path / "run", [*range(30, 40), *range(100, 110)]))
    assert (finding.rule, finding.step, finding.site) == ("train-eval-overlap", 3, "<model>")
    assert finding.title == "10 of 20 samples of the evaluation are training samples"


@pytest.mark.parametrize(
    "evaluated",
    [TRAINED, TRAINED[:20], list(range(100, 140)), [*TRAINED, *range(100, 110)], [1, 2, *range(100, 140)]],
    ids=["the training set", "a part of it", "a test set", "everything", "two by chance"],
)
def test_other_evaluations_are_fine(tmp_path: Path, evaluated: list[int]) -> None:
    assert overlapping_samples(run_with(tmp_path / "run", evaluated)) == []


def test_nothing_is_said_where_training_samples_are_unknown_or_poor(tmp_path: Path) -> None:
    mixed = [*range(30, 40), *range(100, 110)]
    assert overlapping_samples(run_with(tmp_path / "short", mixed, steps=4)) == []
    assert overlapping_samples(run_with(tmp_path / "new", mixed, shuffled=True)) == []
    assert overlapping_samples(run_with(tmp_path / "whole", mixed, whole=True)) == []
