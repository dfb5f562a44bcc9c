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
from roundoff.replay.saved.saved_step import ModulePlace, StateNames, describe_saved_step, read_saved_tape
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


def test_tensors_are_named_after_their_model_and_their_place_in_it() -> None:
    first, second = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(1, 1, bias=False)
    names = StateNames([first, second], [])
    assert names.key_of(first[0].weight) == "model/0.weight"
    assert names.key_of(second.weight) == "model1/weight"
    assert names.tensor("model/1.running_mean") is first[1].running_mean
    assert names.tensor("model/2.weight") is None
    assert names.key_of(torch.ones(1)) is None


def test_a_tied_weight_has_one_name() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    assert [key for key, _ in StateNames([model], []).tensors()] == ["model/0.weight"]


def test_optimizers_stand_in_the_order_of_what_they_move_whatever_order_they_come_in() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    of_second = torch.optim.SGD(model[1].parameters())
    of_first = torch.optim.Adam(model[0].parameters())
    names = StateNames([model], [of_second, of_first])
    assert names.optimizers == [of_first, of_second]
    assert (names.number_of(of_first), names.number_of(of_second)) == (0, 1)
    assert names.number_of(torch.optim.SGD(model.parameters())) is None


def test_parameters_of_no_model_are_named_after_their_optimizer() -> None:
    model, alone = nn.Linear(2, 2), nn.Parameter(torch.ones(1))
    names = StateNames([model], [torch.optim.SGD([*model.parameters(), alone])])
    assert names.key_of(alone) == "optimizer/2/parameter"


def test_modules_are_found_by_place_and_places_by_module() -> None:
    first, second = nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())
    names = StateNames([first, second], [])
    assert names.place_of(second[0]) == ModulePlace(1, "0")
    assert names.module_at(ModulePlace(1, "0")) is second[0]
    assert names.module_at(ModulePlace(2, "0")) is None
    assert names.place_of(nn.ReLU()) is None


def test_a_wrapper_shares_the_place_of_what_it_wraps() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(model)
    names = StateNames([wrapped], [])
    assert names.key_of(model[0].weight) == "model/0.weight"
    assert names.module_at(ModulePlace(0, "")) is wrapped
    assert names.place_of(model) == ModulePlace(0, "")
