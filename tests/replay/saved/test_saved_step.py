"""A saved step at a glance, and folders that hold none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from roundoff.errors import ReplayError
from roundoff.record.loop.sites import Sites
from roundoff.replay.arguments import ExternalTensor
from roundoff.replay.saved.saved_step import describe_saved_step, read_saved_tape
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.state import Training
from roundoff.replay.step_tape import Ambient, FunctionEntry, StepTape
from roundoff.runs import ReplayInfo, Run, RunInfo, RunWriter

NAN = float("nan")


def saved(folder: Path, *batch: torch.Tensor) -> Run:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    training, sites = Training(), Sites()
    training.add_model(model)
    training.add_optimizer(optimizer)
    sites.add_model(model)
    external = [ExternalTensor(x) for x in batch]
    call = FunctionEntry(torch.add, tuple(external), {}, Ambient(True, ()), None)
    with RunWriter.create(folder, RunInfo()) as writer:
        before = StepInputsWriter(writer, training, sites)
        before.write_state()
        before.write_batch(StepTape(7, [call], external))
    return Run.open(folder)


def test_what_a_rerun_starts_from_is_described(tmp_path: Path) -> None:
    step = describe_saved_step(saved(tmp_path / "run", torch.tensor([1.0, NAN, 3.0]), torch.tensor([[2, 4]])))
    assert (step.step, step.rank, step.origin, step.needs_loss) == (7, 0, None, None)
    assert (step.models, step.optimizers, step.num_numbers) == (("Linear",), ("SGD",), 3)
    first, second = step.batch
    assert (first.dtype, first.shape, first.least, first.largest, first.num_nonfinite) == ("float32", (3,), 1, 3, 1)
    assert (second.dtype, second.shape, second.least, second.largest) == ("int64", (1, 2), 2, 4)
    assert step.to_object()["models"] == ("Linear",)


def test_a_tensor_without_a_finite_number_and_an_empty_one_have_no_range(tmp_path: Path) -> None:
    step = describe_saved_step(saved(tmp_path / "run", torch.tensor([NAN, float("inf")]), torch.ones(0)))
    assert [(x.least, x.largest, x.num_nonfinite) for x in step.batch] == [(None, None, 2), (None, None, 0)]


def test_of_complex_numbers_both_parts_count(tmp_path: Path) -> None:
    (reported,) = describe_saved_step(saved(tmp_path / "run", torch.tensor([1 - 2j]))).batch
    assert (reported.dtype, reported.least, reported.largest) == ("complex64", -2, 1)


def test_a_folder_without_a_tape_says_so(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", RunInfo()):
        pass
    with pytest.raises(
        ReplayError, match=r"does not hold a step that can be run again.*\n.*the calls of its loop were not saved"
    ):
        describe_saved_step(Run.open(tmp_path / "run"))


def test_a_folder_whose_replay_failed_says_how(tmp_path: Path) -> None:
    info = ReplayInfo(
        step=0, snapshot_step=0, is_identical=None, first_difference=None, is_eager=False, note="the replay raised"
    )
    with RunWriter.create(tmp_path / "run", RunInfo()) as writer:
        writer.write(info)
    with pytest.raises(ReplayError, match="the state before it is not known, since the replay raised"):
        describe_saved_step(Run.open(tmp_path / "run"))


@pytest.mark.parametrize(
    "changed",
    [{"models": None}, {"models": ["Linear"]}, {"outside": [{}]}, {"outside": [3]}, {"step": "7"}],
    ids=["no models", "models without classes", "tensors without facts", "a number", "a text"],
)
def test_a_broken_tape_is_refused_by_the_name_of_what_is_missing(changed: dict[str, Any], tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    tape: Any = run.replay_tape()
    with RunWriter.create(tmp_path / "other", RunInfo()) as writer:
        with writer.replay_state():
            pass
        writer.write_replay_tape({**tape, **changed})
    (name,) = changed
    with pytest.raises(ReplayError, match=f"its tape has no valid {name}"):
        read_saved_tape(Run.open(tmp_path / "other"), rank=0)
