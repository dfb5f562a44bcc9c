"""What a step, a running module, a loss scale and an interrupted call are, for everything that follows a loop."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.record.loop.calls import LoopCall
from roundoff.record.loop.follower import BackwardCall, LoopFollower, ModuleCall, StepAttempt
from roundoff.record.loop.observer import observing_loop
from roundoff.record.ops.interceptor import OpInterceptor
from roundoff.record.session import Recording
from roundoff.sensitivity.step_measurement import StepMeasurement
from roundoff.watch.watch import Watch
from tests.record.scaled_sgd import ScaledSGD

X = torch.ones(2, 3)


class Noting(LoopFollower):
    """Writes down every hook, with where the loop is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.backwards: list[BackwardCall] = []

    def failed(self, error: Exception) -> None:
        raise error

    def step_opened(self, module: nn.Module | None) -> None:
        self.seen.append(("opened", self.step))

    def step_continued(self, module: nn.Module | None) -> None:
        self.seen.append(("continued", self.step))

    def step_closed(self, step: int) -> None:
        self.seen.append(("closed", step))

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        self.seen.append(("called", self.sites.names[call.site], call.depth, call.is_by_loop))

    def module_returned(self, call: ModuleCall, output: Any) -> None:
        self.seen.append(("returned", self.sites.names[call.site]))

    def modules_interrupted(self) -> None:
        self.seen.append("interrupted")

    def backward_began(self, backward: BackwardCall) -> None:
        self.backwards.append(backward)
        self.seen.append("backward")

    def backward_ended(self, *, is_microbatch: bool) -> None:
        self.seen.append(("backward ended", is_microbatch))

    def optimizer_began(self, attempt: StepAttempt) -> None:
        self.seen.append(("optimizer", attempt.is_nested))

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        self.seen.append(("optimizer ended", attempt.is_nested, attempt.was_skipped))

    def optimizer_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen.append("optimizer skipped")

    def closure_began(self) -> None:
        self.seen.append("closure")

    def loop_called(self, call: LoopCall) -> None:
        self.seen.append(call.kind)

    def steps(self) -> list[Any]:
        """Where steps open and close."""
        return [entry for entry in self.seen if entry[0] in ("opened", "closed")]


@pytest.fixture
def follower() -> Noting:
    return Noting()


class Outer(nn.Module):
    """Calls itself or raises, as configured."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: Tensor, depth: int = 0, error: BaseException | None = None) -> Tensor:
        if error is not None:
            raise error
        return self(x, depth - 1) if depth else self.inner(x)


def test_recording_watch_interception_and_sensitivity_follow_the_loop_in_the_same_way() -> None:
    for kind in (Recording, Watch, OpInterceptor, StepMeasurement):
        assert issubclass(kind, LoopFollower)


def test_a_step_is_everything_from_its_forward_to_the_next_forward_after_an_attempt(follower: Noting) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observing_loop(follower):
        for _ in range(2):
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()
    assert follower.seen[:9] == [
        "zero_grad",
        ("opened", 0),
        ("called", "<model>", 0, True),
        ("returned", "<model>"),
        ("continued", 0),
        "backward",
        ("backward ended", True),
        ("continued", 0),
        ("optimizer", False),
    ]
    assert follower.seen[9:14] == [
        ("optimizer ended", False, False),
        "zero_grad",  # which still belongs to step 0
        ("closed", 0),
        ("opened", 1),
        ("called", "<model>", 0, True),
    ]
    assert (follower.num_steps, follower.step, follower.is_open) == (1, 1, True)
    assert follower.last_optimizer is optimizer


def test_each_attempt_of_another_optimizer_is_a_step(follower: Noting) -> None:
    model = nn.Linear(3, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    with observing_loop(follower):
        model(X).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert follower.steps() == [("opened", 0), ("closed", 0), ("opened", 1)]


def test_an_evaluation_opens_a_step_unless_a_follower_does_not_want_that(follower: Noting) -> None:
    class Training(Noting):
        opens_with_evaluation = False

    model, other = nn.Linear(3, 1).eval(), Training()
    with observing_loop(follower), observing_loop(other), torch.no_grad():
        model(X)
    assert (follower.is_open, other.is_open) == (True, False)
    assert follower.saw_training
    assert other.saw_training


def test_a_loop_of_plain_functions_has_a_step_for_each_backward_after_an_attempt(follower: Noting) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with observing_loop(follower):
        for _ in range(3):
            weight.square().sum().backward()
            optimizer.step()
    assert [entry for entry in follower.steps() if entry[0] == "opened"] == [("opened", step) for step in range(3)]


def test_modules_are_known_with_their_depth_and_only_the_outermost_is_called_by_the_loop(follower: Noting) -> None:
    with observing_loop(follower):
        Outer()(X)
    calls = [entry for entry in follower.seen if entry[0] == "called"]
    assert calls == [("called", "<model>", 0, True), ("called", "inner", 1, False)]
    assert follower.modules.running == follower.modules.sites == []


def test_a_module_that_calls_itself_is_called_by_the_loop_once(follower: Noting) -> None:
    with observing_loop(follower):
        Outer()(X, 2)
    calls = [entry[2:] for entry in follower.seen if entry[0] == "called"]
    assert calls == [(0, True), (1, False), (2, False), (3, False)]
    assert follower.modules.running == []


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_module_that_raised_runs_no_more(error: BaseException, follower: Noting) -> None:
    model = Outer()
    with observing_loop(follower):
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            model(X, error=error)
        model(X).sum().backward()
    assert follower.modules.running == []
    assert [entry[2:] for entry in follower.seen if entry[0] == "called"] == [(0, True), (0, True), (1, False)]


def test_a_module_that_never_said_that_it_ended_is_forgotten_at_the_next_backward(follower: Noting) -> None:
    follower.forward_enter(nn.ReLU(), ())
    with observing_loop(follower):
        nn.Parameter(torch.ones(1)).sum().backward()
    assert "interrupted" in follower.seen
    assert follower.modules.running == []


def test_an_optimizer_that_raised_steps_no_more(follower: Noting) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("not today")

    model = nn.Linear(3, 1)
    failing, optimizer = Failing(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    with observing_loop(follower):
        model(X).sum().backward()
        with contextlib.suppress(ValueError):
            failing.step()
        optimizer.step()
    assert [entry for entry in follower.seen if entry[0] == "optimizer"] == [("optimizer", False)] * 2
    assert not follower.clock.in_step


def test_an_optimizer_inside_another_is_a_part_of_its_attempt(follower: Noting) -> None:
    class Around(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return inner.step()

    model = nn.Linear(3, 1)
    inner, around = torch.optim.SGD(model.parameters()), Around(model.parameters())
    with observing_loop(follower):
        model(X).sum().backward()
        around.step()
    assert [entry for entry in follower.seen if entry[0] == "optimizer"] == [("optimizer", False), ("optimizer", True)]
    assert follower.last_optimizer is around
    assert follower.num_steps == 0


def test_the_forward_of_a_closure_is_a_part_of_the_step_that_calls_it(follower: Noting) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        loss = model(X).sum()
        loss.backward()
        return loss

    with observing_loop(follower):
        optimizer.step(closure)
    assert "closure" in follower.seen
    assert follower.steps() == [("opened", 0)]


@pytest.mark.parametrize("by_name", [True, False])
def test_the_loss_is_known_without_the_scale_of_an_optimizer_or_a_scaler(by_name: bool, follower: Noting) -> None:
    model = nn.Linear(3, 1)
    optimizer, scaler = ScaledSGD(model.parameters(), scale=4.0), torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = [model(X).sum() for _ in range(3)]
    with observing_loop(follower):
        if by_name:
            optimizer.backward(loss=losses[0])
        else:
            optimizer.backward(losses[0])
        scaler.scale(losses[1]).backward()
        losses[2].backward()
    assert all(backward.loss is loss for backward, loss in zip(follower.backwards, losses, strict=True))
    scales = [None if backward.scale is None else float(backward.scale) for backward in follower.backwards]
    assert scales == [4.0, 8.0, None]
    assert [backward.is_scaled for backward in follower.backwards] == [False, True, False]


def test_two_losses_that_are_scaled_before_either_goes_backward_are_both_known(follower: Noting) -> None:
    model, scaler = nn.Linear(3, 1), torch.amp.GradScaler("cpu", init_scale=8.0)
    with observing_loop(follower):
        losses = [model(X).sum(), model(X).mean()]
        for scaled in [scaler.scale(loss) for loss in losses]:
            scaled.backward()
    assert all(backward.loss is loss for backward, loss in zip(follower.backwards, losses, strict=True))


def test_a_step_that_the_optimizer_skips_for_an_overflow_was_skipped(follower: Noting) -> None:
    model = nn.Linear(3, 1)
    optimizer = ScaledSGD(model.parameters())
    optimizer.last_overflow = "weight"
    with observing_loop(follower):
        optimizer.backward(model(X).sum())
        optimizer.step()
    assert ("optimizer ended", False, True) in follower.seen
    assert follower.clock.skipped


def test_an_attempt_that_a_scaler_does_not_let_through_is_one_all_the_same(follower: Noting) -> None:
    model, scaler = nn.Linear(3, 1), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observing_loop(follower):
        scaler.scale(model(X).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        model(X)
    assert "optimizer skipped" in follower.seen
    assert follower.steps() == [("opened", 0), ("closed", 0), ("opened", 1)]
    assert follower.last_optimizer is optimizer


def test_a_backward_inside_another_and_one_for_a_penalty_end_no_microbatch(follower: Noting) -> None:
    model = nn.Linear(3, 1)
    x = X.clone().requires_grad_()

    def backward_inside(gradient: Tensor) -> None:
        with torch.enable_grad():
            model(X).sum().backward()

    with observing_loop(follower):
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        y = gradient.square().sum()
        y.register_hook(backward_inside)
        y.backward()
    penalty, outer, nested = follower.backwards
    assert (penalty.is_part_of_forward, penalty.accumulates, penalty.loss) == (True, False, None)
    assert (outer.is_nested, nested.is_nested) == (False, True)
    assert [entry[1] for entry in follower.seen if entry[0] == "backward ended"] == [False, False, True]
    assert follower.clock.microbatch == 1


def test_what_the_loop_does_is_ignored_while_it_is_our_own_doing(follower: Noting) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    follower.ignores_loop = True
    with observing_loop(follower):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
    assert follower.seen == []
    assert not follower.saw_training
