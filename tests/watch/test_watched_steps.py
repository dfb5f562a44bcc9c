"""A step from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.diagnose import diagnose_run
from roundoff.replay.step_tape import estimate_ops
from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch, WatchState
from roundoff.watch.watching import start_watching


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


def final_value(model: nn.Module) -> None:
    print(model(torch.ones(1, 2)).sum().item())


def final_function(model: nn.Linear) -> None:
    (model.weight * 2).sum()


def final_evaluation(model: nn.Module) -> None:
    model.eval()
    for _ in range(3):
        nn.functional.mse_loss(model(torch.ones(1, 2)), torch.ones(1, 2)).item()
    torch.save(model.state_dict(), "/dev/null")


@pytest.mark.parametrize("final", [final_value, final_function, final_evaluation])
@pytest.mark.parametrize("num_steps", [1, 3, 30])
def test_a_forward_after_the_last_step_is_no_step(
    final: Callable[[nn.Linear], None], num_steps: int, tmp_path: Path
) -> None:
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(probe_seconds=1))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch.running():
        for _ in range(num_steps):
            step(model, optimizer)
        final(model)
    assert watch.num_steps == num_steps
    assert [metrics.step for metrics in Run.open(tmp_path / "run").metrics()] == list(range(num_steps))
    assert watch.complaints == []


def test_a_forward_that_raises_is_a_step_that_has_begun(tmp_path: Path) -> None:
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(probe_seconds=0))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch.running():
        step(model, optimizer)
        with pytest.raises(RuntimeError) as raised:
            model(torch.ones(1, 3))
        watch.note_exception(raised.value)
    assert watch.num_steps == 2


def test_rules_have_the_facts_of_some_steps_whatever_they_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundoff.watch.budget._START_SECONDS", 0.0)
    monkeypatch.setattr("roundoff.watch.budget._FIRST_SHARE", 0.0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with start_watching(to=tmp_path / "run", settings=WatchSettings()).running():
        for _ in range(30):
            model(torch.randn(3, 2)).square().mean().backward()
            optimizer.step()  # gradients are never cleared

    assert diagnose_run(Run.open(tmp_path / "run")).findings[0].rule == "missing-zero-grad"


class Unrolled(nn.Module):
    """Calls one module again and again, as a loop over the moments of a sequence does."""

    def __init__(self, num_calls: int) -> None:
        super().__init__()
        self.cell = nn.Linear(2, 2)
        self.num_calls = num_calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.num_calls):
            x = self.cell(x).tanh()
        return x


def lbfgs_step(num_calls: int) -> Callable[[], object]:
    model = Unrolled(num_calls)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=10, tolerance_grad=0, tolerance_change=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@pytest.mark.parametrize(("num_calls", "is_recorded"), [(1, True), (400, False)])
def test_a_step_that_calls_a_module_thousands_of_times_is_not_recorded(
    num_calls: int, is_recorded: bool, tmp_path: Path
) -> None:
    step = lbfgs_step(num_calls)
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(probe_seconds=0))
    with watch.running():
        for _ in range(3):
            step()
    left_out = [text[:34] for text in watch.complaints if "is not recorded" in text]
    expected = [] if is_recorded else [f"step {step} is not recorded: that would" for step in (0, 1)]
    assert left_out == expected
    assert Run.open(watch.folder).steps == ([0, 1] if is_recorded else [])


def test_the_ops_of_a_step_are_counted_however_few_modules_run_them(watch: Watch) -> None:
    lbfgs_step(50)()
    num_ops = estimate_ops(watch._tape.so_far())
    assert 10 * 50 * 3 * 3 <= num_ops <= 10 * 50 * 3 * 3 * 1.3  # t, addmm and tanh, and twice as much backward
