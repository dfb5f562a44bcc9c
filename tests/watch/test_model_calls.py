"""Calls of models, as a watch follows them."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from roundoff.replay.step_tape import ModelEntry
from roundoff.runs import read_flight
from roundoff.runs.files.folder import flight_path
from roundoff.watch.watch import Watch


class Inner(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != 2:
            raise ValueError("two, please")
        return super().forward(x)


class Calls(nn.Module):
    """Calls itself as often as its argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner(2, 2)

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        return self(x, depth - 1) if depth else self.inner(x)


def in_training() -> Calls:
    """A model that has gone backward, so that what is called now is no mere trial of it."""
    model = Calls()
    model(torch.ones(1, 2)).sum().backward()
    return model


def calls(watch: Watch) -> list[ModelEntry]:
    return [entry for entry in watch._tape.so_far().entries if isinstance(entry, ModelEntry)]


def test_only_what_the_loop_calls_is_on_the_tape(watch: Watch) -> None:
    model = Calls()
    model(torch.ones(1, 2))
    (call,) = calls(watch)
    assert (call.module, call.num_results, call.raised) == (model, 1, False)
    assert not watch.modules.running


def test_a_model_that_calls_itself_was_called_once(watch: Watch) -> None:
    model = Calls()
    model(torch.ones(1, 2), 3)
    assert len(calls(watch)) == 1
    assert not watch.modules.running


def test_a_call_whose_exception_the_loop_catches_has_raised_and_leaves_nothing_running(watch: Watch) -> None:
    model = in_training()
    with contextlib.suppress(ValueError):
        model(torch.ones(1, 3))
    model(torch.ones(1, 2))
    assert [call.raised for call in calls(watch)] == [True, False]
    assert not watch.modules.running


def test_a_call_inside_of_an_exceptions_handler_has_not_raised(watch: Watch) -> None:
    model = in_training()
    try:
        model(torch.ones(1, 3))
    except ValueError:
        model(torch.ones(1, 2))
    assert [call.raised for call in calls(watch)] == [True, False]


def test_the_loss_of_an_evaluation_is_kept_and_its_model_not_taped(watch: Watch) -> None:
    model = nn.Linear(2, 1).eval()
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert calls(watch) == []
    assert len(watch._detector.eval_losses) == 1
    assert watch.saw_training


def test_modules_that_never_said_that_they_ended_are_forgotten(watch: Watch) -> None:
    outer, inner = nn.Sequential(nn.ReLU()), nn.ReLU()
    watch.forward_enter(outer, ())
    watch.forward_enter(inner, ())
    watch.forward_leave(outer, None)
    assert not watch.modules.running
    watch.forward_leave(inner, None)  # which is too late to matter
    watch.forward_enter(outer, ())
    watch._forget_interrupted(num_modules=0)
    assert not watch.modules.running


def test_the_flight_recorder_knows_the_module_that_is_running(watch: Watch) -> None:
    model, seen = Calls(), []

    def look(*_: object) -> None:
        seen.append(read_flight(flight_path(watch.folder, rank=0)).sites)

    model.inner.register_forward_pre_hook(look)
    model(torch.ones(1, 2))
    assert seen == [("<model>", "inner")]


def test_a_step_begins_after_a_model_that_was_only_tried_out_between_two_steps(watch: Watch) -> None:
    model = in_training()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    nn.Sequential(model.inner)(torch.ones(1, 2)).sum().item()  # gone when the step is played again
    loss = model(torch.ones(1, 2)).sum()
    assert [call.module for call in calls(watch)] == [model]
    loss.backward()
    optimizer.step()
    assert watch._snapshots.path_to(1, among=[watch._tape.so_far()]) is not None


def test_a_step_begins_with_a_new_model_whose_result_it_uses(watch: Watch) -> None:
    model = in_training()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    encoder = nn.Linear(2, 2)
    model(encoder(torch.ones(1, 2))).sum().backward()
    assert [call.module for call in calls(watch)] == [encoder, model]
