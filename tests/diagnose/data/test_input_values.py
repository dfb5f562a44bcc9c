"""Inputs that are far too large or constant are named; masks, states and images that the model scales are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.data.input_values import constant_inputs, large_inputs
from roundoff.runs import BatchFacts, Run, Severity, TensorFacts
from tests.diagnose.findings import only
from tests.run_folders import hash_rows, labels, tensor, write_run

ZERO = {"min": 0.0, "max": 0.0, "mean": 0.0, "std": 0.0}


def run_with(folder: Path, *tensors: TensorFacts, num_steps: int = 4) -> Run:
    targets = [(labels({"0": 4, "1": 4}, hash=f"{step}"),) for step in range(num_steps)]
    return write_run(
        folder, [BatchFacts(step=step, tensors=tensors, targets=targets[step]) for step in range(num_steps)]
    )


@pytest.mark.parametrize(
    ("std", "severity"), [(1000.0, Severity.ERROR), (90.0, Severity.WARNING), (30.0, None), (1.0, None)]
)
def test_an_input_is_judged_by_its_size(std: float, severity: Severity | None, tmp_path: Path) -> None:
    found = large_inputs(run_with(tmp_path / "run", tensor(max=4 * std, std=std)))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_says_reach_mean_and_std(tmp_path: Path) -> None:
    finding = only(large_inputs, run_with(tmp_path / "run", tensor(min=-4200.0, max=3900.0, mean=12.0, std=1000.0)))
    assert (finding.rule, finding.step, finding.site) == ("input-scale", 0, "<model>")
    assert "its values reach 4.2e3 (mean 12, std 1e3)" in finding.why


def test_whole_numbers_masks_and_times_may_be_large(tmp_path: Path) -> None:
    run = run_with(
        tmp_path / "run",
        tensor("<model>[0]", dtype="int64", max=30000.0, std=9000.0),
        tensor("<model>[1]", min=-1e9, max=0.0, mean=-5e8, std=5e8),
        tensor("<model>:time", (8,), max=999.0, mean=500.0, std=290.0),
        tensor("mse_loss[1]", max=1e6, std=1e5),
    )
    assert large_inputs(run) == []


def test_one_large_batch_among_others_is_no_matter_of_scale(tmp_path: Path) -> None:
    batches = [BatchFacts(step=step, tensors=(tensor(std=1000.0 if step == 2 else 1.0),)) for step in range(5)]
    assert large_inputs(write_run(tmp_path / "run", batches)) == []


def test_an_input_of_one_number_is_named(tmp_path: Path) -> None:
    finding = only(constant_inputs, run_with(tmp_path / "run", tensor(**ZERO), tensor("<model>:mask", (16, 16))))
    assert (finding.rule, finding.step, finding.site) == ("constant-input", 0, "<model>")
    assert finding.title == "the input <model>[0] is constant"
    assert "every element is 0 in all 4 observed steps" in finding.why


def test_samples_that_are_all_the_same_are_named(tmp_path: Path) -> None:
    batches = [BatchFacts(step=step, tensors=(tensor(),)) for step in range(3)]
    hashes = [(step, "sample", "<model>[0]", 7) for step in range(3) for _ in range(8)]
    finding = only(constant_inputs, write_run(tmp_path / "run", batches, hash_rows(hashes)))
    assert "every sample is the same in all 3 observed steps" in finding.why


@pytest.mark.parametrize("other", ["<model>[1]", "<model>:attention_mask"])
def test_a_constant_next_to_another_input_may_be_a_state_or_a_mask(other: str, tmp_path: Path) -> None:
    assert constant_inputs(run_with(tmp_path / "run", tensor(), tensor(other, **ZERO))) == []


def test_one_batch_again_and_again_is_not_constant(tmp_path: Path) -> None:
    batches = [BatchFacts(step=step, tensors=(tensor(hash="a"),)) for step in range(3)]
    hashes = [(step, "sample", "<model>[0]", sample) for step in range(3) for sample in range(8)]
    assert constant_inputs(write_run(tmp_path / "run", batches, hash_rows(hashes))) == []
