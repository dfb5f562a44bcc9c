"""One step as it was taped."""

from __future__ import annotations

import torch
from torch import nn

from roundoff.replay.arguments import ExternalTensor
from roundoff.replay.step_tape import (
    Ambient,
    BackwardEntry,
    FunctionEntry,
    StepEntry,
    StepTape,
    flatten_entries,
    number_results,
)

PLAIN = Ambient(True, ())


def function(num_results: int) -> FunctionEntry:
    return FunctionEntry(torch.add, (), {}, PLAIN, None, num_results)


def backward(loss: float | None) -> BackwardEntry:
    return BackwardEntry((), (), {}, None, None if loss is None else torch.tensor(loss))


def with_closures() -> StepTape:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    step = StepEntry(optimizer, [], None, [[function(1), backward(1.0)], [function(2), backward(0.5)]])
    return StepTape(0, [function(3), step, backward(None), function(1)])


def test_switches_are_those_of_the_moment() -> None:
    assert Ambient.now() == PLAIN
    with torch.no_grad():
        assert Ambient.now() == Ambient(False, ())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Ambient.now() == Ambient(True, (("cpu", True, torch.bfloat16),))
        with torch.autocast("cpu", enabled=False):
            assert Ambient.now() == PLAIN


def test_the_entries_of_closures_come_after_their_step() -> None:
    tape = with_closures()
    kinds = [type(entry).__name__ for entry in flatten_entries(tape.entries)]
    inside = ["FunctionEntry", "BackwardEntry"]
    assert kinds == ["FunctionEntry", "StepEntry", *inside, *inside, "BackwardEntry", "FunctionEntry"]


def test_results_are_numbered_through_closures_without_a_gap() -> None:
    ranges = [numbers for _, numbers in number_results(with_closures().entries) if len(numbers)]
    assert ranges == [range(3), range(3, 4), range(4, 6), range(6, 7)]


def test_losses_are_those_that_backward_started_from() -> None:
    assert [loss.item() for loss in with_closures().losses] == [1.0, 0.5]


def test_the_bytes_are_those_of_the_copies() -> None:
    assert (
        StepTape(
            0, external=[ExternalTensor(torch.ones(3)), ExternalTensor(torch.ones(2, dtype=torch.int64))]
        ).num_bytes
        == 28
    )
