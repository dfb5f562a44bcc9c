"""States are described where a checkpoint is saved or loaded, nowhere else, and the training does not notice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.kernels.summaries import summarize
from roundoff.runs import Run, StateFacts
from roundoff.watch.facts import training_states
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import start_watching


def train(num_steps: int, after_step: Callable[[int, nn.Module, torch.optim.Optimizer], None]) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(num_steps):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :2].argmax(1)).backward()
        optimizer.step()
        after_step(step, model, optimizer)
    return [p.detach().clone() for p in model.parameters()]


def watch(
    folder: Path, num_steps: int, after_step: Callable[[int, nn.Module, torch.optim.Optimizer], None]
) -> tuple[Run, list[Tensor]]:
    settings = WatchSettings(recorded_steps=(), probe_seconds=0)
    with start_watching(to=folder, settings=settings).running():
        weights = train(num_steps, after_step)
    run = Run.open(folder)
    assert run.failures() == []
    return run, weights


def moments(states: list[StateFacts]) -> list[tuple[int, str, str]]:
    return [(state.step, state.moment, state.after) for state in states]


def test_a_save_is_described_and_the_step_after_it(tmp_path: Path):
    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 2:
            torch.save(model.state_dict(), tmp_path / "model.pt")
            torch.save({"inner": {"optimizer": optimizer.state_dict()}}, tmp_path / "optimizer.pt")

    run, weights = watch(tmp_path / "run", 5, save)
    states = run.states()
    assert moments(states) == [(3, "saved", "save"), (3, "began", "save")]
    assert states[0].updates == {"AdamW": 3}
    assert states[0].rates == {"AdamW": [0.01]}
    assert [(group.kind, group.name, group.num_tensors) for group in states[0].groups] == [
        ("weight", "Sequential", 6),
        ("buffer", "Sequential", 3),
        ("optimizer", "AdamW.exp_avg", 6),
        ("optimizer", "AdamW.exp_avg_sq", 6),
    ]
    assert states[0].groups == states[1].groups
    assert set(states[0].generators) >= {"torch", "numpy", "python"}
    assert states[0].generators["torch"] != states[1].generators["torch"]  # the batch was drawn in between
    bare = train(5, save)
    assert all(torch.equal(first, second) for first, second in zip(weights, bare, strict=True))


def test_other_things_are_saved_without_a_look_at_the_state(tmp_path: Path):
    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.save({"predictions": torch.zeros(3), "step": step, "nested": {"a": [1]}}, tmp_path / "other.pt")
        torch.save(torch.zeros(2), tmp_path / "tensor.pt")

    run, _ = watch(tmp_path / "run", 4, save)
    assert run.states() == []


def test_weights_that_go_from_one_model_to_another_are_no_checkpoint(tmp_path: Path):
    target: list[nn.Module] = []

    def synchronize(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not target:
            target.append(copy.deepcopy(model))
        target[0].load_state_dict(model.state_dict())

    run, _ = watch(tmp_path / "run", 4, synchronize)
    assert run.states() == []


def test_the_steps_after_a_save_are_followed_and_then_quiet_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("roundoff.watch.budget._TAPED_STEPS", 2)
    monkeypatch.setattr("roundoff.watch.budget._FREE_SECONDS_PER_STEP", 0.0)
    monkeypatch.setattr("roundoff.record.loop.observer.has_compiled", lambda: False)
    settings = WatchSettings(recorded_steps=(), probe_seconds=0, full_steps=1, budget=0.0)
    watch = start_watching(to=tmp_path / "run", settings=settings)
    quiet: dict[int, bool] = {}

    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        quiet[step] = watch.is_quiet
        if step == 39:
            torch.save(model.state_dict(), tmp_path / "model.pt")

    with watch.running():
        train(60, save)
    run = Run.open(tmp_path / "run")
    assert moments(run.states()) == [(40, "saved", "save"), (40, "began", "save")]
    table = run.hashes()
    table = table.take(table.texts("kind").equals("batch"))
    assert table["step"].to_list() == [40, 41, 42, 43]
    assert set(table["name"].to_list()) == {"<model>[0]"}
    assert [step for step in range(30, 60) if not quiet[step]] == [40, 41, 42, 43]
    assert [line.step for line in run.metrics()] == list(range(60))


def test_a_large_state_is_not_hashed_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training_states, "_MAX_BYTES", 100)

    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 1:
            torch.save(model.state_dict(), tmp_path / "model.pt")

    run, _ = watch(tmp_path / "run", 4, save)
    state, next_state = run.states()
    assert moments([state, next_state]) == [(2, "saved", "save"), (2, "began", "save")]
    assert state.groups == ()
    assert state.why_no_groups is not None
    assert state.why_no_groups.endswith("more than 100 B are not hashed")
    assert state.updates == {"AdamW": 2}


def test_a_state_that_has_not_changed_is_not_hashed_twice_if_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training_states, "_REHASHED_BYTES", 0)

    def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step in (1, 3):
            torch.save(model.state_dict(), tmp_path / "model.pt")

    num_hashed = 0

    def counted(x: Tensor) -> object:
        nonlocal num_hashed
        num_hashed += 1
        return summarize(x)

    monkeypatch.setattr(training_states, "summarize", counted)
    run, _ = watch(tmp_path / "run", 6, save)
    first, second, third, fourth = run.states()
    assert first.groups == second.groups != third.groups == fourth.groups
    assert num_hashed == 2 * 21
