"""Where steps begin and end, which microbatch and phase an op belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.record.loop.step_clock import Phase, StepClock, has_optimizer
from roundoff.runs import Run, StepDetail

X, Y = torch.randn(4, 3), torch.randn(4, 2)


def ops(run: Run, *, phase: str | None = None, **wanted: Any) -> list[tuple[Any, ...]]:
    """(step, microbatch, phase) of each op, in order; inputs, parameters and gradients left out."""
    return [
        (e.step, e.microbatch, e.phase)
        for e in run.iter_events(phase=phase)
        if "." in e.op and all(getattr(e, key) == value for key, value in wanted.items())
    ]


def phases_by_step(run: Run) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for event in run.iter_events():
        if "." in event.op and event.phase not in found.setdefault(event.step, []):
            found[event.step].append(event.phase)
    return found


WHOLE = ["forward", "backward", "optimizer"]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.mse_loss(model(X), Y).backward()
    optimizer.step()


def test_each_optimizer_step_is_a_step_counted_from_0(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = record(lambda: [step(model, optimizer) for _ in range(3)])
    assert phases_by_step(run) == {0: WHOLE, 1: WHOLE, 2: WHOLE}
    assert [(m.step, m.optimizer, m.skipped, m.lr) for m in run.metrics()] == [
        (0, "SGD", False, 0.1), (1, "SGD", False, 0.1), (2, "SGD", False, 0.1),
    ]  # fmt: skip


def test_clearing_one_model_between_the_backwards_of_two_ends_no_step(record):
    maker, judge = nn.Linear(3, 2), nn.Linear(2, 1)
    makes, judges = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, judge))

    def play() -> None:
        fake = maker(X)
        makes.zero_grad()
        judge(fake).mean().backward()
        judges.zero_grad()
        judge(fake.detach()).mean().backward()
        judges.step()
        makes.step()

    run = record(lambda: [play() for _ in range(3)])
    assert [(m.step, m.optimizer) for m in run.metrics()] == [(step, "SGD") for step in range(6)]
    calls = [(call.step, call.microbatch) for call in run.calls() if call.call == "backward"]
    assert calls == [(0, 0), (0, 1), (2, 0), (2, 1), (4, 0), (4, 1)]


def test_only_the_chosen_steps_have_events_but_all_have_metrics(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = record(lambda: [step(model, optimizer) for _ in range(6)], steps=[1, 4])
    assert phases_by_step(run) == {1: WHOLE, 4: WHOLE}
    assert [m.step for m in run.metrics()] == [0, 1, 2, 3, 4, 5]
    assert all(m.loss is not None for m in run.metrics())


def test_the_metrics_hold_the_loss_that_the_loop_saw(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []

    def training():
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(model(X), Y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    assert [m.loss for m in record(training).metrics()] == losses


def test_clipping_and_schedulers_belong_to_the_step_before(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def training():
        for _ in range(2):
            F.mse_loss(model(X), Y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    run = record(training)
    assert [(c.step, c.call) for c in run.calls()] == [
        (0, "backward"), (0, "clip"), (0, "step"), (0, "scheduler"), (0, "zero_grad"),
        (1, "backward"), (1, "clip"), (1, "step"), (1, "scheduler"), (1, "zero_grad"),
    ]  # fmt: skip


def test_evaluation_without_gradients_is_phase_eval_of_the_step_before(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        for _ in range(2):
            step(model, optimizer)
            with torch.no_grad():
                F.mse_loss(model(X), Y)

    assert phases_by_step(record(training)) == {0: [*WHOLE, "eval"], 1: [*WHOLE, "eval"]}


@pytest.mark.parametrize(
    "without_gradients",
    [torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)],
    ids=["no_grad", "inference_mode", "set_grad_enabled"],
)
def test_every_way_of_switching_gradients_off_is_evaluation(record, without_gradients):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        step(model, optimizer)
        with without_gradients():
            model(X)
        step(model, optimizer)

    run = record(training)
    assert [(e.step, e.op) for e in run.iter_events(phase="eval")] == [(0, "input"), (0, "aten.addmm")]


def test_a_decorated_function_is_evaluation_too(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.no_grad()
    def evaluate() -> Tensor:
        return model(X).argmax(1)

    def training():
        step(model, optimizer)
        evaluate()

    run = record(training)
    assert [e.op for e in run.iter_events(phase="eval")] == ["input", "aten.addmm", "aten.argmax"]


def test_a_sanity_check_before_the_first_step_belongs_to_step_0(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        with torch.no_grad():
            model(X)
        step(model, optimizer)

    assert phases_by_step(record(training)) == {0: ["eval", *WHOLE]}


def test_a_teacher_without_gradients_leaves_the_loss_in_forward(record):
    student, teacher = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def training():
        for _ in range(2):
            out = student(X)
            with torch.no_grad():
                wanted = teacher(X)
                wanted = wanted.tanh()
            loss = F.mse_loss(out, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run = record(training)
    assert ops(run, op="aten.mse_loss") == [(0, 0, "forward"), (1, 0, "forward")]
    assert ops(run, op="aten.tanh") == [(0, 0, "eval"), (1, 0, "eval")]
    assert phases_by_step(run) == {n: ["forward", "eval", "backward", "optimizer"] for n in (0, 1)}


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_accumulation_gives_microbatches_0_to_n_in_one_step(record, num_parts):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(num_parts):
                F.mse_loss(model(X), Y).backward()
            optimizer.step()

    run = record(training)
    for phase in ("forward", "backward"):
        assert sorted(set(ops(run, phase=phase))) == [(s, m, phase) for s in (0, 1) for m in range(num_parts)]
    assert set(ops(run, phase="optimizer")) == {(0, 0, "optimizer"), (1, 0, "optimizer")}
    assert ops(run, op="aten.addmm") == [(s, m, "forward") for s in (0, 1) for m in range(num_parts)]
    assert {e.nth for e in run.iter_events(op="aten.addmm")} == {0}


def test_the_loss_of_an_accumulated_step_is_the_mean_over_its_microbatches(record):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def training():
        for part in (1.0, 2.0, 6.0):
            (weight * part).sum().backward()
        optimizer.step()

    assert record(training).metrics()[0].loss == 3.0


def scaled_step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, *, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(X), Y) * factor).backward()
    scaler.step(optimizer)
    scaler.update()


def test_an_attempt_that_the_scaler_skips_counts_and_the_scale_it_used_is_noted(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def training():
        for factor in (1.0, torch.inf, 1.0):
            scaled_step(model, optimizer, scaler, factor=factor)

    run = record(training)
    assert [(m.step, m.skipped, m.loss_scale, m.optimizer) for m in run.metrics()] == [
        (0, False, 1024.0, "SGD"), (1, True, 1024.0, "SGD"), (2, False, 512.0, "SGD"),
    ]  # fmt: skip
    skipped = [c for c in run.calls() if c.detail_as(StepDetail).skipped]
    assert [(c.step, c.detail_as(StepDetail).optimizer) for c in skipped] == [(1, "SGD")]


def test_the_loss_in_the_metrics_is_without_the_factor_of_the_scaler(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.no_grad():
        expected = F.mse_loss(model(X), Y).item()
    assert record(lambda: scaled_step(model, optimizer, scaler)).metrics()[0].loss == expected


def test_a_disabled_scaler_is_not_in_the_way(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    run = record(lambda: [scaled_step(model, optimizer, scaler) for _ in range(2)])
    assert [(m.step, m.skipped) for m in run.metrics()] == [(0, False), (1, False)]


def test_skipped_attempts_of_two_optimizers_are_two_steps(record):
    first, second = nn.Linear(3, 2), nn.Linear(2, 2)
    optimizers = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def training():
        for factor in (torch.inf, 1.0):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(F.mse_loss(second(first(X)), Y) * factor).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

    assert [(m.step, m.optimizer, m.skipped) for m in record(training).metrics()] == [
        (0, "SGD", True), (1, "Adam", True), (2, "SGD", False), (3, "Adam", False),
    ]  # fmt: skip


def test_two_optimizers_one_after_another_are_two_steps_each_labelled(record):
    first, second = nn.Linear(3, 2), nn.Linear(2, 2)
    of_first, of_second = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)

    def training():
        for _ in range(2):
            of_first.zero_grad()
            of_second.zero_grad()
            F.mse_loss(second(first(X)), Y).backward()
            of_first.step()
            of_second.step()

    run = record(training)
    assert [(m.step, m.optimizer, m.lr) for m in run.metrics()] == [
        (0, "SGD", 0.1), (1, "Adam", 0.01), (2, "SGD", 0.1), (3, "Adam", 0.01),
    ]  # fmt: skip
    assert phases_by_step(run) == {0: WHOLE, 1: ["optimizer"], 2: WHOLE, 3: ["optimizer"]}
    gradients = {(e.step, e.parameter) for e in run.iter_events(op="gradient", step=[0, 1])}
    assert gradients == {(0, "weight"), (0, "bias"), (1, "Linear:weight"), (1, "Linear:bias")}


def test_a_gan_has_one_step_for_each_of_its_optimizers(record):
    maker, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    of_maker, of_critic = torch.optim.Adam(maker.parameters()), torch.optim.SGD(critic.parameters(), lr=0.1)

    def training():
        for _ in range(2):
            of_critic.zero_grad()
            (critic(maker(X).detach()).mean() - critic(X).mean()).backward()
            of_critic.step()
            of_maker.zero_grad()
            (-critic(maker(X)).mean()).backward()
            of_maker.step()

    run = record(training)
    assert [(m.step, m.optimizer) for m in run.metrics()] == [(0, "SGD"), (1, "Adam"), (2, "SGD"), (3, "Adam")]
    assert phases_by_step(run) == {n: WHOLE for n in range(4)}


def test_a_loop_that_never_steps_closes_at_zero_grad(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the bug: it is never called

    def training():
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(model(X), Y).backward()

    run = record(training)
    assert phases_by_step(run) == {n: ["forward", "backward"] for n in range(3)}
    assert [(m.step, m.optimizer, m.lr) for m in run.metrics()] == [(n, None, None) for n in range(3)]


def test_a_loop_without_an_optimizer_closes_at_the_next_forward(record):
    model = nn.Linear(3, 2)

    def training():
        for _ in range(3):
            F.mse_loss(model(X), Y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    assert phases_by_step(record(training)) == {n: WHOLE for n in range(3)}


def test_an_optimizer_of_something_else_does_not_hide_manual_steps(record):
    other = nn.Linear(3, 2)
    unrelated = torch.optim.SGD(other.parameters(), lr=0.1)
    step(other, unrelated)
    model = nn.Linear(3, 2)

    def training():
        for _ in range(3):
            F.mse_loss(model(X), Y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    assert phases_by_step(record(training)) == {n: WHOLE for n in range(3)}
    assert unrelated is not None


def functional_steps(num_steps: int, *, zero_grad: bool) -> None:
    weight, bias = torch.randn(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.1)
    for _ in range(num_steps):
        loss = (X @ weight + bias - Y).square().mean()
        if zero_grad:
            optimizer.zero_grad()
        else:
            weight.grad = bias.grad = None
        loss.backward()
        optimizer.step()


def manual_steps(num_steps: int) -> None:
    weight = torch.randn(3, 2, requires_grad=True)
    for _ in range(num_steps):
        loss = (X @ weight - Y).square().mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None


FUNCTIONAL: dict[str, Callable[[int], None]] = {
    "an optimizer and zero_grad": lambda n: functional_steps(n, zero_grad=True),
    "an optimizer": lambda n: functional_steps(n, zero_grad=False),
    "nothing but tensors": manual_steps,
}


@pytest.mark.parametrize("training", FUNCTIONAL.values(), ids=FUNCTIONAL.keys())
def test_functions_of_plain_tensors_have_steps_too(record, training):
    run = record(lambda: training(3))
    assert phases_by_step(run) == {n: WHOLE for n in range(3)}
    assert [(s, p) for s, _, p in ops(run, op="aten.mm", phase="forward")] == [(n, "forward") for n in range(3)]
    assert [m.step for m in run.metrics()] == [0, 1, 2]


@pytest.mark.parametrize("training", FUNCTIONAL.values(), ids=FUNCTIONAL.keys())
def test_a_chosen_step_of_plain_tensors_is_whole(record, training):
    run = record(lambda: training(5), steps=[2, 4])
    assert phases_by_step(run) == {2: WHOLE, 4: WHOLE}
    whole = record(lambda: training(5))
    for number in (2, 4):
        assert Counter(e.op for e in run.iter_events(step=number)) == Counter(
            e.op for e in whole.iter_events(step=number)
        )


def test_functions_of_plain_tensors_accumulate(record):
    weight = torch.randn(3, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def training():
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(3):
                (X @ weight).sum().backward()
            optimizer.step()

    assert ops(record(training), op="aten.mm", phase="forward") == [(s, m, "forward") for s in (0, 1) for m in range(3)]


def test_closures_of_lbfgs_stay_in_one_step(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), Y)
        loss.backward()
        return loss

    run = record(lambda: [optimizer.step(closure) for _ in range(2)])
    assert [(m.step, m.optimizer) for m in run.metrics()] == [(0, "LBFGS"), (1, "LBFGS")]
    assert {e.phase for e in run.iter_events(op="aten.addmm")} == {"forward"}
    assert all(set(phases) == set(WHOLE) for phases in phases_by_step(run).values())


def test_a_forward_that_raises_leaves_the_count_as_it_was(record):
    class Fragile(nn.Linear):
        broken = False

        def forward(self, x: Tensor) -> Tensor:
            if self.broken:
                raise ValueError("a bad batch")
            return super().forward(x)

    model = Fragile(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        step(model, optimizer)
        model.broken = True
        with pytest.raises(ValueError, match="a bad batch"):
            step(model, optimizer)
        model.broken = False
        step(model, optimizer)

    assert [m.step for m in record(training).metrics()] == [0, 1]


def test_an_interrupt_that_the_script_catches_leaves_no_stale_site(record):
    class Slow(nn.Linear):
        interrupted = False

        def forward(self, x: Tensor) -> Tensor:
            if self.interrupted:
                raise KeyboardInterrupt
            return super().forward(x)

    model = nn.Sequential(Slow(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        step(model, optimizer)
        model[0].interrupted = True
        with pytest.raises(KeyboardInterrupt):
            step(model, optimizer)
        model[0].interrupted = False
        step(model, optimizer)
        step(model, optimizer)

    run = record(training)
    assert [m.step for m in run.metrics()] == [0, 1, 2]
    assert {e.site for e in run.iter_events(op="aten.mse_loss")} == {"<loop>"}


def test_a_backward_that_raises_leaves_the_count_as_it_was(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        step(model, optimizer)
        loss = F.mse_loss(model(X), Y)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        optimizer.step()
        step(model, optimizer)

    assert [m.step for m in record(training).metrics()] == [0, 1, 2]


class Failing(torch.optim.SGD):
    fails = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if self.fails:
            raise ValueError("no step today")
        super().step(closure)


def test_steps_go_on_after_an_optimizer_that_raised(record):
    model = nn.Linear(3, 2)
    optimizer = Failing(model.parameters(), lr=0.1)

    def training():
        step(model, optimizer)
        optimizer.fails = True
        with pytest.raises(ValueError, match="no step today"):
            step(model, optimizer)
        optimizer.fails = False
        step(model, optimizer)
        step(model, optimizer)

    run = record(training)
    assert [m.step for m in run.metrics()] == [0, 1, 2, 3]
    assert phases_by_step(run)[3] == WHOLE


def test_an_optimizer_around_another_takes_one_step(record):
    class Around(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    model = nn.Linear(3, 2)
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    run = record(lambda: [step(model, optimizer) for _ in range(2)])
    assert [(m.step, m.optimizer) for m in run.metrics()] == [(0, "Around"), (1, "Around")]


def test_gradients_taken_for_a_penalty_are_no_microbatch(record):
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def training():
        for _ in range(2):
            x = X.clone().requires_grad_()
            out = critic(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            (out.mean() + penalty).backward()
            optimizer.step()

    run = record(training)
    assert [m.step for m in run.metrics()] == [0, 1]
    assert {e.microbatch for e in run.iter_events()} == {0}
    assert {e.phase for e in run.iter_events(op="aten.linalg_vector_norm", step=0)} == {"forward"}
    assert phases_by_step(run) == {0: WHOLE, 1: WHOLE}


def test_a_loop_of_autograd_grad_has_a_step_for_each(record):
    model = nn.Linear(3, 2)

    def training():
        for _ in range(3):
            loss = F.mse_loss(model(X), Y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient

    assert phases_by_step(record(training)) == {n: WHOLE for n in range(3)}


def test_a_step_that_never_ended_is_kept_when_the_block_ends(record):
    model = nn.Linear(3, 2)
    run = record(lambda: F.mse_loss(model(X), Y).backward())
    assert phases_by_step(run) == {0: ["forward", "backward"]}


def test_the_clock_starts_at_step_0_in_forward():
    clock = StepClock(lambda: None, has_optimizer=lambda: True)
    assert (clock.step, clock.microbatch, clock.phase) == (0, 0, Phase.FORWARD)
    assert not clock.has_begun


def test_optimizers_that_step_during_one_backward_make_one_step():
    clock = StepClock(lambda: None, has_optimizer=lambda: True)
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for _ in range(3):
        clock.forward(with_gradients=True)
        clock.backward_enter()
        for parameter in parameters:
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            clock.step_enter(optimizer)
            clock.step_leave(optimizer)
            assert clock.phase is Phase.BACKWARD
        clock.backward_leave()
    assert clock.step == 2


def test_an_optimizer_of_wide_copies_belongs_to_the_leaves():
    model = nn.Linear(3, 5).bfloat16()
    leaves = [ref(parameter) for parameter in model.parameters()]
    others = [torch.optim.SGD(other.parameters(), lr=0.1) for other in (nn.Linear(4, 2), nn.Linear(3, 5).bfloat16())]
    assert not has_optimizer(leaves)
    copies = torch.optim.SGD([parameter.detach().float() for parameter in model.parameters()], lr=0.1)
    assert has_optimizer(leaves)
    del copies
    assert not has_optimizer(leaves)
    assert others
