"""Steps of optimizers, as a watch follows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.replay.step_tape import FunctionEntry, StepEntry
from roundoff.runs import Run
from roundoff.runs.files.plain_json import from_json, object_of, to_json
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch
from roundoff.watch.watching import start_watching


def steps(watch: Watch) -> list[dict[str, Any]]:
    """The details of the steps of the open step so far."""
    return [from_json(to_json(object_of(call.detail))) for call in watch._journal.open_calls if call.call == "step"]


def backward(model: nn.Module, scale: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    scale(model(torch.ones(2, 2)).square().mean()).backward()


def test_a_step_is_reported_with_its_rates_and_whether_its_optimizer_is_fresh(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    backward(model)
    optimizer.step()
    assert steps(watch) == [{"optimizer": "Adam", "lr": [0.5], "is_fresh": True}]
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert steps(watch) == [{"optimizer": "Adam", "lr": [0.5]}]


def test_gradients_that_were_not_cleared_are_counted(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        backward(model)
        optimizer.step()
    assert steps(watch)[0]["num_carried"] == 2


def test_a_second_optimizer_of_a_class_has_a_number(watch: Watch) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    backward(nn.Sequential(first, second))
    names = []
    for optimizer in optimizers:
        optimizer.step()
        names.append(steps(watch)[-1]["optimizer"])
    assert names == ["SGD", "SGD#2"]


@pytest.mark.parametrize(("gradient", "reported"), [(1.0, "by_scaler"), (float("inf"), "skipped")])
def test_a_scaler_that_steps_or_skips_is_reported(gradient: float, reported: str, watch: Watch, tmp_path: Path) -> None:
    model, scaler = nn.Linear(2, 1), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    backward(model, lambda loss: scaler.scale(loss * gradient))
    scaler.step(optimizer)
    scaler.update()
    (detail,) = steps(watch)
    assert detail[reported] is True
    assert watch.clock.skipped is (reported == "skipped")
    assert torch.equal(model.weight, before) is (reported == "skipped")


def test_what_a_closure_does_is_a_part_of_its_step(watch: Watch) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 2)).square().mean()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    (call,) = [entry for entry in watch._tape.so_far().entries if isinstance(entry, StepEntry)]
    (inside,) = call.closures
    assert [entry.function.__name__ for entry in inside if isinstance(entry, FunctionEntry)][:2] == ["ones", "square"]
    assert not watch._tape.in_closure


def test_a_step_inside_of_another_is_not_counted(watch: Watch, tmp_path: Path) -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return inner.step()

    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = Outer(model.parameters(), lr=0.1)
    backward(model)
    outer.step()
    assert len(steps(watch)) == 1
    assert not watch.clock.in_step


def test_the_update_is_measured_in_the_run(tmp_path: Path) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(recorded_steps=(), probe_seconds=0))
    with watch.running():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    (metrics,) = Run.open(tmp_path / "run").metrics()
    assert metrics.grad_norm == pytest.approx(2**0.5)
    assert metrics.update_norm == pytest.approx(0.5 * 2**0.5)
