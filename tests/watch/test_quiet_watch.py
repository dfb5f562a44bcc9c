"""Steps that are not taped: what is still seen in them, and how little is done for it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import roundoff
from roundoff.record.loop.observer import FollowedModules, _LoopHooks
from roundoff.runs import Metrics, Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch
from roundoff.watch.watch_part import WatchPart
from roundoff.watch.watching import start_watching

SOURCE = str(Path(roundoff.__file__).parent)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Give a watch without a budget that tapes two steps."""
    monkeypatch.setattr("roundoff.watch.budget._TAPED_STEPS", 2)
    monkeypatch.setattr("roundoff.watch.journal._STEPS_IN_FULL", 2)
    monkeypatch.setattr("roundoff.replay.snapshots._MAX_INTERVAL", 1)  # else a slow machine tapes more steps
    monkeypatch.setattr("roundoff.watch.budget._FREE_SECONDS_PER_STEP", 0.0)  # else a slow machine affords more
    # Hooks stay in place once anything was compiled, which another test in this process may have done.
    monkeypatch.setattr("roundoff.record.loop.observer.has_compiled", lambda: False)
    settings = WatchSettings(recorded_steps=(), probe_seconds=0, full_steps=1, budget=0.0)
    watch = start_watching(to=tmp_path / "run", settings=settings)
    with watch.running():
        yield watch


class Training:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        (factor * self.model(torch.randn(3, 2)).square().mean()).backward()
        self.optimizer.step()

    def until_quiet(self, watch: Watch) -> None:
        for _ in range(200):
            self.step()
            if watch.is_quiet:
                return
        raise AssertionError("every step was taped")


def own_calls(work: Any) -> Counter[str]:
    """Count the calls of our own functions that some work makes."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            found[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def test_a_step_costs_few_calls(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)
    calls = own_calls(lambda: [training.step() for _ in range(10)])
    assert calls[f"{WatchPart.__call__.__qualname__}"] <= 10 * 5
    assert calls[f"{_LoopHooks._report.__qualname__}"] <= 10
    assert calls.total() <= 10 * 110


def test_forwards_before_a_step_cost_nothing(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)

    def act() -> None:
        with torch.no_grad():
            training.model(torch.ones(1, 2))

    act()  # the first one closes the step before
    assert own_calls(lambda: [act() for _ in range(100)]).total() == 0
    training.model(torch.ones(1, 2))
    assert own_calls(lambda: [training.model(torch.ones(1, 2)) for _ in range(100)]).total() == 0


def test_every_step_has_its_line(watch: Watch) -> None:
    training = Training()
    for _ in range(40):
        training.step()
    watch._finish()
    lines: list[Metrics] = list(Run.open(watch.folder).metrics())
    assert [line.step for line in lines] == list(range(40))
    assert all(line.loss is not None and (line.lr, line.optimizer) == (0.1, "SGD") for line in lines)


def test_a_bad_loss_is_noticed_and_the_next_steps_are_taped(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)
    training.step(float("inf"))
    assert [anomaly.kind for anomaly in watch.anomalies] == ["loss"]
    training.step()
    assert not watch._tape.is_paused


def test_an_optimizer_or_a_group_that_is_new_is_described(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.01})
    training.step()
    watch._writer.flush()
    structures = list(Run.open(watch.folder).structures())
    assert [len(optimizer.groups) for optimizer in structures[-1].optimizers] == [2]
    training.until_quiet(watch)
    training.optimizer = torch.optim.Adam(training.model.parameters())
    training.step()
    watch._writer.flush()
    structures = list(Run.open(watch.folder).structures())
    assert {optimizer.name for optimizer in structures[-1].optimizers} >= {"Adam"}


def test_modes_of_the_script_see_nothing_of_ours(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)
    ops: list[list[str]] = []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops[-1].append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops[-1].append(str(getattr(func, "__name__", func)))
            return func(*args, **(kwargs or {}))

    for mode in (Ops, Functions):
        for is_watched in (True, False):
            ops.append([])
            hooks = watch.ignores_loop
            watch.ignores_loop = not is_watched
            with mode():
                training.step()
            watch.ignores_loop = hooks
    assert ops[0] == ops[1]
    assert ops[2] == ops[3]


def test_a_part_that_fails_is_off_and_the_training_goes_on(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)

    def fail(*_: Tensor) -> None:
        raise RuntimeError("broken")

    watch._detector.see_loss = fail
    training.step()
    training.step()
    assert not watch._in_checks.is_on
    assert watch._in_journal.is_on
    training.until_quiet(watch)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("has_compiled", [False, True])
def test_the_last_taped_step_is_probed_where_the_last_of_all_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_function: bool, has_compiled: bool
) -> None:
    monkeypatch.setattr("roundoff.record.loop.observer.has_compiled", lambda: has_compiled)
    monkeypatch.setattr("roundoff.watch.budget._TAPED_STEPS", 2)
    # Looking at the memory of the process lets go of all copies.
    monkeypatch.setattr("roundoff.watch.process.memory_growth.WARM_UP_STEPS", 10_000)
    settings = WatchSettings(recorded_steps=(), probe_seconds=20, full_steps=1, budget=0.0)
    watch = start_watching(to=tmp_path / "run", settings=settings)

    def train() -> Training:
        training = Training()
        training.until_quiet(watch)
        for _ in range(5):
            training.step()
        return training

    with watch.running():
        kept = train()
        if in_function:
            del kept
    steps = {probe.step for probe in Run.open(tmp_path / "run").probes()}
    assert steps
    assert max(steps) < watch.num_steps - 5


class Solver(torch.autograd.Function):
    """Goes backward by many small backwards, as solvers of differential equations do."""

    @staticmethod
    def forward(ctx: Any, model: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.model, ctx.parameters = model, parameters
        ctx.save_for_backward(x)
        with torch.no_grad():
            result: Tensor = model(x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        found = [torch.zeros_like(parameter) for parameter in ctx.parameters]
        for _ in range(20):
            with torch.enable_grad():
                new = torch.autograd.grad(ctx.model(x), ctx.parameters, gradients[0])
            found = [old + more / 20 for old, more in zip(found, new, strict=True)]
        return (None, None, *found)


def test_backwards_inside_a_backward_cost_little_and_leave_the_next_step_plain(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)

    def step() -> None:
        training.optimizer.zero_grad()
        Solver.apply(training.model, torch.ones(3, 2), *training.model.parameters()).square().mean().backward()
        training.optimizer.step()

    step()
    num_steps = watch.num_steps
    assert own_calls(step).total() <= 20 * 40 + 400  # and not all modules in each of them
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    step()
    training.step()
    assert watch.num_steps == num_steps + 3
    assert not watch._is_quiet_part
    assert any(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
    assert watch._tape._num_holds == 0


def test_a_step_inside_a_step_and_one_that_raises_are_followed(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            training.optimizer.step()
            if self.raises:
                raise ValueError("broken")

        raises = False

    outer = Outer(training.model.parameters(), lr=0.0)
    for raises in (False, False, True, False):
        outer.raises = raises
        training.model(torch.ones(3, 2)).square().mean().backward()
        if raises:
            with pytest.raises(ValueError, match="broken"):
                outer.step()
        else:
            outer.step()
    num_steps = watch.num_steps
    training.step()
    training.step()
    assert watch.num_steps == num_steps + 2
    assert watch.state.name in ("FOLLOWING", "HANDLED")
    assert watch._tape._num_holds == 0


def test_no_more_steps_are_watched_in_full_than_the_start_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundoff.watch.budget._START_SECONDS", 0.0)
    monkeypatch.setattr("roundoff.watch.budget._FIRST_SHARE", 0.0)
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(recorded_steps=(0, 1), probe_seconds=0))
    training = Training()
    with watch.running():
        for _ in range(6):
            training.step()
        assert watch._schedule.full_steps == 4  # the two that are recorded, and what rules need


def test_after_a_bad_loss_in_a_loop_without_optimizer_models_are_followed_again(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def go(factor: float) -> None:
        model.zero_grad()
        (factor * model(torch.randn(3, 2)).square().mean()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad.nan_to_num(0.0, 0.0, 0.0)

    for _ in range(200):
        go(1.0)
        if watch.is_quiet:
            break
    for factor in (1.0, 1.0, float("inf"), 1.0):
        go(factor)
    assert watch.anomalies
    assert not watch._tape.is_paused
    assert watch.followed_modules is FollowedModules.ALL


def test_a_loop_that_takes_an_unusual_course_is_counted_as_ever(watch: Watch) -> None:
    """Quiet steps are followed in a short way: whatever leaves it must find everything as it should be."""
    training = Training()
    other = torch.optim.SGD(training.model.parameters(), lr=0.01)
    training.until_quiet(watch)

    def forward() -> Tensor:
        result: Tensor = training.model(torch.randn(3, 2)).square().mean()
        return result

    def two_microbatches() -> None:
        for _ in range(2):
            forward().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    def two_attempts() -> None:
        forward().backward()
        training.optimizer.step()
        other.step()

    def without_gradients_first() -> None:
        with torch.no_grad():
            training.model(torch.ones(1, 2))
        training.step()

    def backward_raises() -> None:
        loss = forward()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        training.optimizer.step()

    def closure() -> Tensor:
        training.optimizer.zero_grad()
        loss = forward()
        loss.backward()
        return loss

    def penalty() -> None:
        x = torch.randn(3, 2, requires_grad=True)
        (gradient,) = torch.autograd.grad(training.model(x).sum(), x, create_graph=True)
        (forward() + gradient.square().mean()).backward()
        training.optimizer.step()

    courses = [
        (training.step, 1),
        (two_microbatches, 1),
        (two_attempts, 2),
        (without_gradients_first, 1),
        (backward_raises, 1),
        (lambda: training.optimizer.step(closure), 1),
        (penalty, 1),
    ]
    before = watch.step
    for course, num_steps in courses * 3:
        step = watch.step
        course()
        training.step()
        assert watch.step - step == num_steps + 1, course
    assert watch.num_steps == watch.step
    assert watch.num_steps - before == 3 * sum(num_steps + 1 for _, num_steps in courses)
    assert watch.state.name in ("FOLLOWING", "HANDLED")
    assert watch._tape._num_holds == 0
    assert not watch.modules.running
    watch._finish()
    lines: list[Metrics] = list(Run.open(watch.folder).metrics())
    assert [line.step for line in lines] == list(range(watch.num_steps))
    assert not watch.anomalies


def test_what_is_played_again_after_quiet_steps_is_no_step(watch: Watch) -> None:
    training = Training()
    training.until_quiet(watch)
    training.step()
    num_steps, step = watch.num_steps, watch.step
    with watch.replaying():
        for _ in range(3):
            training.step()
    assert (watch.num_steps, watch.step) == (num_steps, step)
    training.step()
    assert watch.step == step + 1
