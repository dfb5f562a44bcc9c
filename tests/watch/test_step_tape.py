"""One step as it was taped."""

from __future__ import annotations

import torch
from torch import nn

from roundoff.watch.arguments import Outside
from roundoff.watch.step_tape import Ambient, Backward, FunctionCall, StepCall, StepTape, flat, numbered

PLAIN = Ambient(True, ())


def function(num_results: int) -> FunctionCall:
    return FunctionCall(torch.add, (), {}, PLAIN, None, num_results)


def backward(loss: float | None) -> Backward:
    return Backward((), (), {}, None, None if loss is None else torch.tensor(loss))


def with_closures() -> StepTape:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    step = StepCall(optimizer, [], None, [[function(1), backward(1.0)], [function(2), backward(0.5)]])
    return StepTape(0, [function(3), step, backward(None), function(1)])


def test_switches_are_those_of_the_moment() -> None:
    assert Ambient.now() == PLAIN
    with torch.no_grad():
        assert Ambient.now() == Ambient(False, ())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Ambient.now() == Ambient(True, (("cpu", True, torch.bfloat16),))
        with torch.autocast("cpu", enabled=False):
            assert Ambient.now() == PLAIN


def test_what_closures_did_stands_behind_their_step() -> None:
    tape = with_closures()
    kinds = [type(entry).__name__ for entry in flat(tape.entries)]
    inside = ["FunctionCall", "Backward"]
    assert kinds == ["FunctionCall", "StepCall", *inside, *inside, "Backward", "FunctionCall"]


def test_results_are_numbered_through_closures_without_a_gap() -> None:
    ranges = [numbers for _, numbers in numbered(with_closures().entries) if len(numbers)]
    assert ranges == [range(3), range(3, 4), range(4, 6), range(6, 7)]


def test_losses_are_those_that_backward_started_from() -> None:
    assert [loss.item() for loss in with_closures().losses] == [1.0, 0.5]


def test_the_bytes_are_those_of_the_copies() -> None:
    assert StepTape(0, outside=[Outside(torch.ones(3)), Outside(torch.ones(2, dtype=torch.int64))]).num_bytes == 28
