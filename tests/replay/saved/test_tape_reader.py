"""A tape again from JSON: what is not there, or unknown, is refused; whole steps are in test_rerun.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.errors import ReplayError
from roundoff.record.loop.sites import Sites
from roundoff.replay.arguments import ExternalTensor, Result
from roundoff.replay.saved.saved_step import StateNames
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.saved.tape_reader import TapeReader, read_external_tensors
from roundoff.replay.state import Training
from roundoff.replay.step_tape import FunctionEntry, LoopEntry, StepEntry, StepTape
from roundoff.runs import Run, RunInfo, RunWriter, TensorFile

PLAIN = {"gradients": True, "autocast": []}


@pytest.fixture
def batch(tmp_path: Path) -> TensorFile:
    """The file of a step that was given a transposed matrix and a narrow one."""
    writer, training = RunWriter.create(tmp_path / "run", RunInfo()), Training()
    tape = StepTape(
        0, external=[ExternalTensor(torch.arange(6.0).view(2, 3).t()), ExternalTensor(torch.ones(2).half())]
    )
    StepInputsWriter(writer, training, Sites()).write_batch(tape)
    return Run.open(tmp_path / "run").replay_batch()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2))


def function(name: str = "torch.nn.functional.relu", *args: Any, **changed: Any) -> dict[str, Any]:
    call = {"call": "function", "name": name, "args": {"tuple": list(args)}, "kwargs": {"dict": []}}
    return {**call, "ambient": PLAIN, "line": None, "num_results": 1, **changed}


def step(*closures: list[dict[str, Any]]) -> dict[str, Any]:
    return {"call": "step", "optimizer": 0, "settings": [{"lr": 0.5}], "line": None, "closures": list(closures)}


def read(model: nn.Module, batch: TensorFile, *calls: dict[str, Any], has_optimizer: bool = True) -> list[Any]:
    losses: list[Tensor] = []
    optimizers = [torch.optim.SGD(model.parameters())] if has_optimizer else []
    reader = TapeReader(StateNames([model], optimizers), [], batch, on_loss=losses.append)
    tape: Any = {"step": 0, "scalers": [], "calls": list(calls)}
    return reader.read(tape).entries


def test_functions_come_back_with_their_values(model: nn.Module, batch: TensorFile) -> None:
    value = [
        {"state": "model/0.weight"},
        {"result": 3},
        {"dtype": "float16"},
        {"slice": [None, 2, None]},
        {"ellipsis": True},
    ]
    (call,) = read(model, batch, function("torch.nn.functional.relu", *value))
    assert isinstance(call, FunctionEntry)
    assert call.function is F.relu
    weight, result, *rest = call.args
    assert weight is model[0].weight
    assert isinstance(result, Result)
    assert (result.number, rest) == (3, [torch.float16, slice(None, 2), ...])


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (function("os.system"), "torch has no function 'os.system'"),
        (function("torch.nn.functional.relu", {"dtype": "save"}), "torch has no dtype 'save'"),
        (function("torch.nn.functional.relu", {"state": "model/9.weight"}), "it uses 'model/9.weight', which was not"),
        (function("torch.nn.functional.relu", {"module": [0, "9"]}), "it calls the module '9'"),
        (function("torch.nn.functional.relu", {"code": "1"}), "KeyError: 'code'"),
        (function("torch.nn.functional.relu", {"a": 1, "b": 2}), "ValueError"),
        (function(args=None, kwargs=None, ambient=None), "TypeError"),
        ({"call": "exec", "args": None, "kwargs": None, "line": None}, "a call 'exec', which this version does"),
        ({"call": "scaler.__init__", "args": None, "kwargs": None, "line": None}, "a call 'scaler.__init__'"),
        ({"call": "function"}, "KeyError"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_broken_is_refused_and_nothing_of_it_runs(
    call: dict[str, Any], why: str, model: nn.Module, batch: TensorFile
) -> None:
    with pytest.raises(ReplayError) as refused:
        read(model, batch, call)
    assert why in str(refused.value)
    assert "let the builder return (model, optimizer, loss)" in str(refused.value)


def test_without_an_optimizer_its_steps_are_left_out_but_not_what_their_closures_did(
    model: nn.Module, batch: TensorFile
) -> None:
    zero = {"call": "zero_grad", "of": {"optimizer": 0}, "args": {"tuple": []}, "kwargs": {"dict": []}, "line": None}
    calls = (zero, step([function()], [function()]))
    assert [type(entry) for entry in read(model, batch, *calls)] == [LoopEntry, StepEntry]
    left = read(model, batch, *calls, has_optimizer=False)
    assert [type(entry) for entry in left] == [FunctionEntry, FunctionEntry]


def test_tensors_from_outside_lie_in_memory_as_they_did(batch: TensorFile) -> None:
    facts: Any = [{"stride": [1, 3], "requires_grad": True}, {"stride": [1], "requires_grad": False}]
    first, second = read_external_tensors(facts, batch, is_wide=False)
    assert (first.copy.stride(), first.requires_grad) == ((1, 3), True)
    assert first.copy.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert second.copy.dtype is torch.float16
    assert read_external_tensors(facts, batch, is_wide=True)[1].copy.dtype is torch.float32


def test_a_tensor_that_was_not_saved_is_an_error(batch: TensorFile) -> None:
    facts: Any = [{"stride": stride, "requires_grad": False} for stride in ([2, 1], [1], [1])]
    with pytest.raises(ReplayError, match="'outside2' was not saved"):
        read_external_tensors(facts, batch, is_wide=True)


@pytest.mark.parametrize(
    "facts",
    [
        {"stride": [10**12, 1], "requires_grad": False},
        {"stride": [1], "requires_grad": False},
        {"stride": [-1, 2], "requires_grad": False},
        {"stride": None, "requires_grad": False},
        {"stride": [2, 1]},
    ],
    ids=["too much memory", "too few", "negative", "none", "half of it"],
)
def test_a_tensor_that_is_not_as_it_is_said_to_be_is_refused(facts: Any, batch: TensorFile) -> None:
    with pytest.raises(ReplayError, match="'outside0' does not match its description"):
        read_external_tensors([facts], batch, is_wide=False)
