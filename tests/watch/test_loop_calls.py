"""What a loop calls besides models, backward and optimizers' steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.replay.step_tape import LoopEntry
from roundoff.runs.files.plain_json import object_of
from roundoff.watch.watch import Watch


@pytest.fixture
def model(watch: Watch) -> nn.Module:
    """One whose step has begun."""
    model = nn.Linear(2, 1)
    model(torch.ones(2, 2)).square().mean().backward()
    return model


def taped(watch: Watch) -> list[str]:
    calls = [entry for entry in watch._tape.so_far().entries if isinstance(entry, LoopEntry)]
    return [call.function.__name__ for call in calls]


def noted(watch: Watch) -> list[str]:
    return [call.call for call in watch._journal.open_calls if call.call not in ("forward", "backward")]


def test_clearing_and_clipping_are_taped_so_that_they_can_be_done_again(watch: Watch, model: nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    model.zero_grad()
    assert taped(watch) == ["_clip_grads_with_norm_", "clip_grad_value_", "zero_grad"]
    assert noted(watch) == ["clip", "clip", "zero_grad"]


def test_what_a_scheduler_does_is_noted_and_not_taped(watch: Watch, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    num_functions = len(watch._tape.so_far().entries)
    scheduler.step()
    assert len(watch._tape.so_far().entries) == num_functions
    assert "scheduler" in noted(watch)


def test_a_call_that_another_call_makes_is_a_part_of_it(watch: Watch, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    watch.calling("load", (model,), {})
    watch.calling("zero_grad", (optimizer,), {})
    watch.call_ended("zero_grad")
    watch.call_ended("load")
    assert taped(watch) == []
    watch.calling("zero_grad", (optimizer,), {})
    watch.call_ended("zero_grad")
    assert taped(watch) == ["zero_grad"]


def test_a_call_that_has_no_method_to_make_it_again_is_left_out(watch: Watch, model: nn.Module) -> None:
    watch.calling("unscale", (object(),), {})
    watch.calling("update", (), {})
    watch.call_ended("update")
    watch.call_ended("unscale")
    assert taped(watch) == []


def test_an_unknown_call_changes_nothing(watch: Watch, model: nn.Module) -> None:
    holds = watch._tape._num_holds
    watch.calling("something", (), {})
    watch.call_ended("something")
    assert watch._tape._num_holds == holds


def test_loaded_weights_end_what_can_be_rebuilt(watch: Watch, model: nn.Module) -> None:
    assert watch._snapshots.latest is not None
    model.load_state_dict(model.state_dict())
    assert watch._snapshots.latest is None
    assert "load" in noted(watch)


def test_loaders_are_numbered_and_the_content_of_their_data_is_reported(watch: Watch) -> None:
    first, second = (DataLoader(TensorDataset(torch.full((2, 1), value))) for value in (1.0, 2.0))
    for loader in (first, second, first):
        list(loader)
    epochs = [object_of(call.detail) for call in watch._journal.open_calls if call.call == "epoch"]
    assert [epoch["loader"] for epoch in epochs] == [0, 1, 0]
    assert epochs[0]["content"] == epochs[2]["content"] != epochs[1]["content"]


def test_a_scaler_is_known_from_its_first_call_on(watch: Watch, model: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(2, 2)).mean()).backward()
    assert scaler in watch._training.scalers
    assert "scale" not in noted(watch)
    assert watch.loss_scale.value is not None
