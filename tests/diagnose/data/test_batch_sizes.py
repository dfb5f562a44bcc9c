"""Inputs of one model with different numbers of samples, as far as that differs from step to step."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.data.batch_sizes import disagreeing_batch_sizes
from roundoff.runs import BatchFacts, Run, Severity, TensorFacts
from tests.diagnose.findings import only
from tests.run_folders import write_run


def run_of(folder: Path, *sizes: tuple[int, int], changes: bool = True) -> Run:
    """Write a run in whose steps the two inputs of a model have these numbers of samples."""
    batches = [
        BatchFacts(
            step=step,
            tensors=(
                TensorFacts(place="<model>[0]", shape=(one, 6), dtype="float32", hash=f"a{step}"),
                TensorFacts(place="<model>:goal", shape=(other, 4), dtype="float32", hash=f"b{step * changes}"),
            ),
        )
        for step, (one, other) in enumerate(sizes)
    ]
    return write_run(folder, batches)


def test_the_step_with_one_sample_for_many_is_named(tmp_path: Path) -> None:
    finding = only(disagreeing_batch_sizes, run_of(tmp_path / "run", (8, 8), (8, 8), (8, 1), (8, 8)))
    assert (finding.rule, finding.severity, finding.step) == ("batch-sizes-disagree", Severity.ERROR, 2)
    assert finding.title == "<model>:goal has 1 sample, <model>[0] has 8"
    assert "in step 2, unlike in others, <model>:goal of shape (1, 4) meets <model>[0] of shape (8, 6)" in finding.why


def test_one_for_all_in_every_step_is_a_note_if_it_is_data(tmp_path: Path) -> None:
    always = [(8, 1)] * 5
    assert only(disagreeing_batch_sizes, run_of(tmp_path / "data", *always)).severity is Severity.NOTE
    assert disagreeing_batch_sizes(run_of(tmp_path / "mask", *always, changes=False)) == []


def test_batches_that_are_short_alike_are_fine(tmp_path: Path) -> None:
    assert disagreeing_batch_sizes(run_of(tmp_path / "run", (8, 8), (8, 8), (1, 1))) == []
