"""A step from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch, WatchState
from roundoff.watch.watching import start_watching

pytestmark = pytest.mark.usefixtures("only_new_objects")


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(recorded_steps=(), probe_seconds=0))
    with watch.running():
        yield watch


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(3, 2)).square().mean().backward()
    optimizer.step()


def test_a_step_opens_with_its_forward_and_closes_with_the_next(watch: Watch) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not watch.is_open
    step(model, optimizer)
    assert (watch.is_open, watch.num_steps, watch.step) == (True, 0, 0)
    model(torch.ones(1, 2))
    assert (watch.num_steps, watch.step) == (1, 1)


def test_the_state_before_a_step_is_kept_before_anything_is_computed(watch: Watch) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    latest = watch._snapshots.latest
    assert latest is not None
    with latest.state.swapped_in(watch._training):
        assert torch.equal(model.weight, before)


def test_a_model_that_comes_later_in_a_step_joins_its_snapshot(watch: Watch) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    step(first, optimizer)
    hidden = first(torch.ones(1, 2))
    latest = watch._snapshots.latest
    assert latest is not None
    second(hidden)
    assert watch._snapshots.latest is latest
    assert any(live is second.weight for live, _ in latest.state.tensors)


def test_a_model_that_was_only_tried_before_the_training_is_no_part_of_its_first_step(watch: Watch) -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2))
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    kinds = [type(entry).__name__ for entry in watch._tape.so_far().entries]
    assert kinds.count("ModelEntry") == 1


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_that_a_step_adds_to_are_kept_unless_they_were_cleared(clears: bool, watch: Watch) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    loss = model(torch.ones(1, 2)).sum()
    if clears:
        optimizer.zero_grad()
    loss.backward()
    latest = watch._snapshots.latest
    assert latest is not None
    assert latest.state.has_gradients is not clears


def test_what_is_played_again_is_not_taken_for_the_trainings_own(watch: Watch) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    entries = len(watch._tape.so_far().entries)
    with watch.replaying():
        assert watch.state is WatchState.REPLAYING
        step(model, optimizer)
    assert watch.state is not WatchState.REPLAYING
    assert (watch.step, len(watch._tape.so_far().entries)) == (0, entries)


def test_replaying_ends_also_where_it_fails(watch: Watch) -> None:
    holds = watch._tape._num_holds
    with pytest.raises(ValueError, match="broken"), watch.replaying():
        raise ValueError("broken")
    assert watch.state is not WatchState.REPLAYING
    assert watch._tape._num_holds == holds


def test_after_a_failure_steps_are_counted_and_nothing_else(tmp_path: Path) -> None:
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(recorded_steps=(), probe_seconds=0))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch.running():
        step(model, optimizer)
        step(model, optimizer)
        watch.state = WatchState.STOPPED
        for _ in range(3):
            step(model, optimizer)
    assert watch.num_steps == 5
    assert [metrics.step for metrics in Run.open(tmp_path / "run").metrics()] == [0]
