"""Calls of backward, as a watch follows them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.replay.step_tape import BackwardEntry
from roundoff.runs.files.plain_json import object_of
from roundoff.watch.watch import Watch


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no gradient here")


def backwards(watch: Watch) -> list[BackwardEntry]:
    return [entry for entry in watch._tape.so_far().entries if isinstance(entry, BackwardEntry)]


def journal(watch: Watch) -> list[dict[str, Any]]:
    return [object_of(call.detail) for call in watch._journal.open_calls if call.call == "backward"]


def accumulating(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that is there, so that backwards without a step are microbatches."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_each_backward_of_the_loop_is_taped_with_its_loss(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    optimizer = accumulating(model)
    for _ in range(2):
        model(torch.ones(1, 2)).square().sum().backward()
    assert len(backwards(watch)) == 2
    assert [entry.loss is not None and entry.loss.numel() for entry in backwards(watch)] == [1, 1]
    assert watch.clock.microbatch == 2
    assert len(optimizer.param_groups) == 1


def test_gradients_that_are_returned_or_differentiated_again_are_reported_and_not_taped_as_backward(
    watch: Watch,
) -> None:
    model = nn.Linear(2, 1)
    optimizer = accumulating(model)
    x = torch.ones(1, 2, requires_grad=True)
    (penalty,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    torch.autograd.grad(model(x).sum(), x)
    penalty.square().sum().backward()
    assert journal(watch) == [{"is_part_of_forward": True, "returns_gradients": True}, {"returns_gradients": True}, {}]
    assert len(backwards(watch)) == 1
    assert len(optimizer.param_groups) == 1


def test_a_backward_whose_exception_the_loop_catches_has_raised(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    optimizer = accumulating(model)
    with contextlib.suppress(ValueError):
        Broken.apply(model(torch.ones(1, 2))).sum().backward()
    model(torch.ones(1, 2)).sum().backward()
    assert [entry.raised for entry in backwards(watch)] == [True, False]
    assert len(optimizer.param_groups) == 1


def test_gradients_that_could_not_be_returned_say_nothing_of_the_backward_before(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    optimizer = accumulating(model)
    model(torch.ones(1, 2)).sum().backward()
    x = torch.ones(1, 2, requires_grad=True)
    with contextlib.suppress(ValueError):
        torch.autograd.grad(Broken.apply(model(x)).sum(), x)
    assert [entry.raised for entry in backwards(watch)] == [False]
    assert len(optimizer.param_groups) == 1


def test_a_backward_inside_of_an_exceptions_handler_has_not_raised(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    try:
        raise KeyError("a sample that is missing")
    except KeyError:
        model(torch.ones(1, 2)).sum().backward()
    assert [entry.raised for entry in backwards(watch)] == [False]


def test_a_loss_that_is_not_finite_is_known_before_its_gradients_are(watch: Watch) -> None:
    model, seen = nn.Linear(2, 1), []
    loss = model(torch.ones(1, 2)).sum() * float("nan")
    loss.register_hook(lambda gradient: seen.append([anomaly.kind for anomaly in watch.anomalies]))
    loss.backward()
    assert seen == [["loss"]]


def test_what_is_no_single_number_is_no_loss(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(3, 2)).backward(torch.ones(3, 1))
    assert watch._detector.losses == []
    assert [entry.loss for entry in backwards(watch)] == [None]
