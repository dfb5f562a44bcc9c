"""A gradient that a step used and that was not cleared is counted when the next step adds to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from roundoff.watch.facts.uncleared_gradients import UnclearedGradients

MODEL = nn.Linear(3, 2)


def carried_after(clearing: Callable[[torch.optim.Optimizer], object]) -> int:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    optimizer.zero_grad()
    carried = UnclearedGradients()
    for _ in range(2):
        carried.backward_begins()
        MODEL(torch.ones(4, 3)).square().sum().backward()
        num_carried = carried.num_in(optimizer)
        optimizer.step()
        carried.note_used(optimizer)
        clearing(optimizer)
    return num_carried


def test_counts_the_parameters_whose_gradient_was_not_cleared() -> None:
    assert carried_after(lambda optimizer: None) == 2


@pytest.mark.parametrize(
    "clearing",
    [
        lambda optimizer: optimizer.zero_grad(),
        lambda optimizer: optimizer.zero_grad(set_to_none=False),
        lambda optimizer: [p.grad.data.zero_() for p in MODEL.parameters()],
        lambda optimizer: [p.grad.mul_(0.5) for p in MODEL.parameters()],
    ],
    ids=["none", "zero", "zero by hand", "a decay on purpose"],
)
def test_counts_none_that_was_cleared_or_edited(clearing: Callable[[torch.optim.Optimizer], object]) -> None:
    assert carried_after(clearing) == 0


def test_a_zero_grad_after_the_step_began_clears_them() -> None:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    carried = UnclearedGradients()
    MODEL(torch.ones(4, 3)).sum().backward()
    carried.note_used(optimizer)
    carried.backward_begins()
    carried.note_cleared()
    assert carried.num_in(optimizer) == 0


def test_a_gradient_that_the_loop_replaces_does_not_count() -> None:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    carried = UnclearedGradients()
    MODEL(torch.ones(4, 3)).sum().backward()
    carried.note_used(optimizer)
    carried.backward_begins()
    for parameter in MODEL.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert carried.num_in(optimizer) == 0


def test_gradients_of_another_optimizer_do_not_count() -> None:
    other = nn.Linear(2, 1)
    mine = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    carried = UnclearedGradients()
    other(MODEL(torch.ones(4, 3))).sum().backward()
    carried.note_used(theirs)
    carried.backward_begins()
    assert (carried.num_in(mine), carried.num_in(theirs)) == (0, 2)


def carried_between_evaluations(clearing: Callable[[torch.optim.Optimizer], object]) -> int:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    optimizer.zero_grad()
    carried = UnclearedGradients()
    carried.step_begins()
    for _ in range(3):
        carried.closure_begins()
        clearing(optimizer)
        carried.backward_begins()
        MODEL(torch.ones(4, 3)).square().sum().backward()
        num_carried = carried.closure_ends(optimizer)
    return num_carried


def test_counts_gradients_that_one_evaluation_of_a_closure_leaves_to_the_next() -> None:
    assert carried_between_evaluations(lambda optimizer: None) == 2
    assert carried_between_evaluations(lambda optimizer: optimizer.zero_grad()) == 0
    assert carried_between_evaluations(lambda optimizer: optimizer.zero_grad(set_to_none=False)) == 0


def test_another_optimizer_that_clears_and_steps_first_hides_nothing() -> None:
    other = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (MODEL, other)]
    carried = UnclearedGradients()
    for optimizer in optimizers:
        optimizer.zero_grad()
    for _ in range(2):
        optimizers[0].zero_grad()
        carried.note_cleared(optimizers[0])
        carried.backward_begins()
        other(MODEL(torch.ones(4, 3))).square().sum().backward()
        numbers = []
        for optimizer in optimizers:
            numbers.append(carried.num_in(optimizer))
            optimizer.step()
            carried.note_used(optimizer)
    assert numbers == [0, 2]


def left_over_after(clearing: Callable[[torch.optim.Optimizer], object], *, same_loss: bool = False) -> int:
    """Return how many gradients of a critic are left from the loss of its actor when it steps."""
    actor, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (actor, critic))
    gradients = UnclearedGradients()
    critic(actor(torch.ones(4, 3))).square().sum().backward()
    first.step()
    gradients.note_left_over(first, "SGD", [second])
    clearing(second)
    gradients.drop_cleared_left_over()
    if not same_loss:
        critic(torch.ones(4, 2)).square().sum().backward()
    return gradients.take_left_over(second)[0]


def test_counts_gradients_that_the_loss_of_another_optimizer_left() -> None:
    assert left_over_after(lambda optimizer: None) == 2


def test_gradients_that_were_cleared_or_are_of_one_loss_are_not_left_over() -> None:
    assert left_over_after(lambda optimizer: optimizer.zero_grad()) == 0
    assert left_over_after(lambda optimizer: optimizer.zero_grad(set_to_none=False)) == 0
    assert left_over_after(lambda optimizer: None, same_loss=True) == 0
