"""A tape as JSON and back, and what cannot be written as JSON; whole steps are in test_rerun.py."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.replay.arguments import Container, ExternalTensor, Result
from roundoff.replay.saved.saved_step import StateNames
from roundoff.replay.saved.step_inputs import NotSerializable, TapeWriter
from roundoff.replay.step_tape import (
    Ambient,
    BackwardEntry,
    FunctionEntry,
    LoopEntry,
    ModelEntry,
    StepEntry,
    StepTape,
    TapeEntry,
)

PLAIN = Ambient(True, ())
Pair = namedtuple("Pair", "first second")


class WrittenSteps:
    """A training of one layer, and a writer of its steps."""

    def __init__(
        self, *entries: TapeEntry, external: tuple[ExternalTensor, ...] = (), scalers: tuple[Any, ...] = ()
    ) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.tape = StepTape(0, list(entries), list(external))
        self.writer = TapeWriter(self.tape, StateNames([self.model], [self.optimizer]), scalers)


def function(call: Callable[..., Any], *args: Any, **kwargs: Any) -> FunctionEntry:
    return FunctionEntry(call, args, kwargs, PLAIN, ("train.py", 3), 1)


def test_every_value_that_a_call_may_get_becomes_json() -> None:
    steps = WrittenSteps()
    value = [
        1,
        2.5,
        None,
        "a",
        True,
        (1,),
        {"k": 2},
        torch.float16,
        torch.device("cpu"),
        slice(1, None),
        ...,
        torch.Size([2]),
    ]
    assert json.loads(json.dumps(steps.writer.value(value))) == [
        1, 2.5, None, "a", True, {"tuple": [1]}, {"dict": [["k", 2]]}, {"dtype": "float16"}, {"device": "cpu"},
        {"slice": [1, None, None]}, {"ellipsis": True}, {"tuple": [2]},
    ]  # fmt: skip


def test_tensors_modules_and_optimizers_become_names_or_numbers() -> None:
    external = ExternalTensor(torch.ones(2))
    steps = WrittenSteps(external=(external,))
    value = steps.writer.value
    assert value(steps.model[0].weight) == {"state": "model/0.weight"}
    assert value(steps.model[0]) == {"module": [0, "0"]}
    assert value(steps.optimizer) == {"optimizer": 0}
    assert value(external) == {"outside": 0}
    assert value(Result(7)) == {"result": 7}
    assert value(Container(lambda parts: Pair(*parts), [1, Result(2)])) == {"tuple": [1, {"result": 2}]}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.ones(1), "the step uses a Tensor that belongs to no model"),
        (nn.ReLU(), "the step uses a ReLU that belongs to no model"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))]), "the step uses an optimizer SGD that belongs to no model"),
        ({1}, "an argument of a call is a set"),
    ],
    ids=["tensor", "module", "optimizer", "set"],
)
def test_what_another_process_would_not_know_is_refused(value: Any, why: str) -> None:
    with pytest.raises(NotSerializable, match=why):
        WrittenSteps().writer.value(value)


def test_a_function_that_is_not_torchs_is_refused_by_its_name() -> None:
    def own_loss(x: Any) -> Any:
        return x

    with pytest.raises(NotSerializable, match="the function own_loss"):
        WrittenSteps(function(own_loss)).writer.calls()


def test_a_batch_is_what_models_and_functions_were_given() -> None:
    used, weights, gradient = (ExternalTensor(torch.ones(2)) for _ in range(3))
    backward = BackwardEntry((Result(0),), (gradient,), {}, None, None)
    steps = WrittenSteps(
        function(F.relu, used), function(torch.mul, Result(0), weights), backward, external=(used, weights, gradient)
    )
    steps.writer.calls()
    assert steps.writer.in_batch == {0, 1}


def test_calls_are_written_in_order_with_losses_lines_and_settings() -> None:
    steps = WrittenSteps()
    state = (torch.zeros(3, dtype=torch.uint8), ())
    steps.tape.entries += [
        LoopEntry(steps.optimizer.zero_grad, (), {"set_to_none": True}, None),
        ModelEntry(steps.model, (), {}, Ambient(True, (("cpu", True, torch.bfloat16),)), state, True, 1),
        function(F.mse_loss, Result(0)),
        BackwardEntry((Result(1),), (), {}, ("train.py", 4), torch.tensor(0.5)),
        StepEntry(steps.optimizer, [{"lr": torch.tensor(0.5), "hook": print}], None, [[function(F.relu, Result(0))]]),
    ]
    zero, model, loss, backward, step = json.loads(json.dumps(steps.writer.calls()))
    assert (zero["call"], zero["of"], zero["kwargs"]) == (
        "zero_grad",
        {"optimizer": 0},
        {"dict": [["set_to_none", True]]},
    )
    assert model["ambient"] == {"gradients": True, "autocast": [["cpu", True, "bfloat16"]]}
    assert (loss["call"], loss["line"], loss["num_results"]) == ("function", ["train.py", 3], 1)
    assert backward["loss"] == ["float32", 0.5]
    assert step["settings"] == [{"lr": 0.5}]
    assert [call["call"] for call in step["closures"][0]] == ["function"]
    assert steps.writer.generators == [state[0]]


def test_clipping_and_scalers_are_known_and_other_methods_are_not() -> None:
    scaler = torch.amp.GradScaler("cpu")
    steps = WrittenSteps(scalers=(scaler,))
    steps.tape.entries += [
        LoopEntry(torch.nn.utils.clip_grad_value_, (1.0,), {}, None),
        LoopEntry(scaler.update, (), {}, None),
    ]
    calls: Any = steps.writer.calls()
    assert [call["call"] for call in calls] == ["clip_grad_value", "scaler.update"]
    with pytest.raises(NotSerializable, match=r"Sequential.float, whose state is not saved"):
        WrittenSteps(LoopEntry(steps.model.float, (), {}, None)).writer.calls()
