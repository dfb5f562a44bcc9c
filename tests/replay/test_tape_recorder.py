"""What the loop's own code did, noted as it happens; that it can be played again is in test_player.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.replay.arguments import Result
from roundoff.replay.step_tape import BackwardEntry, FunctionEntry, StepEntry
from roundoff.replay.tape_recorder import TapeRecorder
from roundoff.torch_private import FunctionMode


class Taping:
    """A running tape, and what it reported."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(2))
        self.buffer = torch.zeros(2)
        self.errors: list[Exception] = []
        self.num_forwards = 0
        self.tape = TapeRecorder(is_state=lambda x: x is self.buffer, on_forward=self._forward, max_bytes=2**30)
        self.tape.failed = self.errors.append

    def _forward(self) -> None:
        self.num_forwards += 1
        self.tape.is_between = False

    @property
    def names(self) -> list[str]:
        """The functions on the tape."""
        return [entry.function.__name__ for entry in self.tape.step.entries if isinstance(entry, FunctionEntry)]


@pytest.fixture
def taping() -> Iterator[Taping]:
    taping = Taping()
    taping.tape.release()
    try:
        yield taping
    finally:
        taping.tape.hold()
    assert taping.errors == []


def in_step(taping: Taping) -> Taping:
    taping.tape.begin()
    return taping


def is_on(tape: TapeRecorder) -> bool:
    stack = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    return any(mode is tape for mode in stack)


def test_it_is_off_until_it_was_released_as_often_as_it_was_held() -> None:
    tape = Taping().tape
    assert isinstance(tape, FunctionMode)
    assert not is_on(tape)
    tape.release()
    tape.hold()
    tape.hold()
    tape.release()
    assert not is_on(tape)
    tape.release()
    assert is_on(tape)
    tape.hold()
    assert not is_on(tape)


def test_functions_that_compute_are_noted_and_those_that_only_read_are_not(taping: Taping) -> None:
    in_step(taping)
    loss = (taping.weight * 2).sum()
    assert loss.item() == 4
    assert loss.shape == ()
    repr(loss)
    assert taping.names == ["mul", "sum"]


def test_what_is_computed_without_gradients_comes_from_outside(taping: Taping) -> None:
    in_step(taping)
    with torch.no_grad():
        mask = torch.ones(2) + 1
    taping.weight * mask
    (call,) = taping.tape.so_far().entries
    assert isinstance(call, FunctionEntry)
    (external,) = taping.tape.step.external
    assert external.copy.tolist() == [2, 2]


def test_writing_into_state_without_gradients_is_noted_also_through_an_alias(taping: Taping) -> None:
    in_step(taping)
    with torch.no_grad():
        taping.weight.clamp_(-1, 1)
        taping.buffer.mul_(2)
        taping.weight.data.add_(1)
        torch.zeros(2).add_(1)  # no parameter's
    assert taping.names == ["clamp_", "mul_", "__get__", "add_"]


def test_between_two_steps_only_a_graph_begins_another(taping: Taping) -> None:
    in_step(taping).tape.is_between = True
    torch.ones(2) + 1
    with torch.no_grad():
        taping.weight * 2
    assert (taping.names, taping.num_forwards) == ([], 0)
    taping.weight * 2
    assert (taping.names, taping.num_forwards) == (["mul"], 1)


def test_a_later_call_knows_the_results_of_an_earlier_one_by_number(taping: Taping) -> None:
    in_step(taping)
    first = taping.weight * 2
    (first + 1).sum()
    calls: list[Any] = taping.tape.step.entries
    assert [call.num_results for call in calls] == [1, 1, 1]
    assert isinstance(calls[1].args[0], Result)
    assert (calls[1].args[0].number, calls[2].args[0].number) == (0, 1)


def test_losses_and_numbers_that_are_read_are_reported_and_computed_once(taping: Taping) -> None:
    losses: list[float] = []
    scalars: list[Any] = []
    taping.tape.on_loss = lambda args, result: losses.append(float(result.detach()))
    taping.tape.on_scalar = scalars.append
    in_step(taping)
    loss = F.mse_loss(taping.weight, torch.zeros(2))
    loss.item()
    with torch.no_grad():
        F.mse_loss(taping.weight, torch.ones(2))
    assert losses == [1.0, 0.0]
    assert [x is loss for x in scalars] == [True]
    assert taping.names == ["zeros", "mse_loss"]


def test_who_looks_and_fails_costs_the_tape_and_not_the_loop() -> None:
    taping = Taping()
    taping.tape.on_loss = lambda args, result: 1 / 0
    taping.tape.release()
    taping.tape.begin()
    loss = F.mse_loss(taping.weight, torch.zeros(2))
    taping.tape.hold()
    assert loss.item() == 1.0
    assert [type(error) for error in taping.errors] == [ZeroDivisionError]


def test_what_came_before_the_first_step_stays_only_where_its_graph_does(taping: Taping) -> None:
    kept = taping.weight * 2
    taping.weight * 3  # a graph that nothing holds
    torch.ones(2) + 1
    taping.tape.begin()
    assert taping.names == ["mul"]
    kept.sum()
    assert taping.names == ["mul", "sum"]


def test_closures_are_a_part_of_their_step(taping: Taping) -> None:
    in_step(taping)
    optimizer = torch.optim.SGD([taping.weight], lr=0.5)
    call = taping.tape.step_enter(optimizer)
    taping.tape.closure_enter(call)
    assert taping.tape.in_closure
    taping.weight * 2
    taping.tape.closure_leave()
    taping.tape.closure_leave()
    assert not taping.tape.in_closure
    (entry,) = taping.tape.step.entries
    assert isinstance(entry, StepEntry)
    assert len(entry.closures[0]) == 1
    optimizer.param_groups[0]["lr"] = 9.0
    assert (entry.settings[0]["lr"], "params" in entry.settings[0]) == (0.5, False)


def test_the_last_call_of_a_kind_is_the_one_that_raised(taping: Taping) -> None:
    tape = in_step(taping).tape
    tape.note_raised(BackwardEntry)  # there is none
    for _ in range(2):
        tape.backward((taping.weight,), (), {}, loss=None)
    taping.weight * 2
    tape.note_raised(BackwardEntry)
    assert [entry.raised for entry in tape.step.entries if isinstance(entry, BackwardEntry)] == [False, True]


def test_the_next_step_begins_empty_and_names_the_steps_its_graphs_come_from(taping: Taping) -> None:
    tape = in_step(taping).tape
    carried = taping.weight * 2
    ended = tape.new_step(1)
    assert (ended.step, len(ended.entries), tape.step.step, tape.step.entries) == (0, 1, 1, [])
    carried.sum()
    assert tape.so_far().reached_steps == {0}


def test_each_call_has_the_line_of_the_user(taping: Taping) -> None:
    in_step(taping)
    taping.weight * 2
    (call,) = taping.tape.step.entries
    assert call.line is not None
    assert call.line[0] == __file__
