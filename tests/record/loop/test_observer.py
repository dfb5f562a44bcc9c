"""The calls of a loop are seen in order, and all hooks are removed, whatever happens."""

from __future__ import annotations

import contextlib
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_  # imported by name, before any recording
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from roundoff.record import recording
from roundoff.runs import Call, ModeDetail, Run
from roundoff.runs.files.plain_json import from_json, object_of, to_json

X, Y = torch.randn(4, 3), torch.randn(4, 2)


def calls(run: Run, *names: str) -> list[str]:
    return [call.call for call in run.calls() if not names or call.call in names]


def details(run: Run, name: str) -> list[dict[str, Any]]:
    return [from_json(to_json(object_of(call.detail))) for call in run.calls() if call.call == name]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.mse_loss(model(X), Y).backward()
    optimizer.step()


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(3, 2)


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


# -- calls -------------------------------------------------------------------------------------------------------------


def test_every_call_of_a_loop_is_noted_in_order(record, model, optimizer, tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = StepLR(optimizer, 1, gamma=0.5)

    def training():
        model.train()
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(X), Y)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        model.eval()
        with torch.no_grad():
            model(X)
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        model.load_state_dict(torch.load(tmp_path / "weights.pt"))

    run = record(training)
    assert calls(run) == [
        "train", "zero_grad", "backward", "unscale", "clip", "step", "scheduler", "eval", "save", "read", "load",
    ]  # fmt: skip
    assert {call.step for call in run.calls()} == {0}
    seconds = [call.seconds for call in run.calls()]
    assert seconds == sorted(seconds)


def test_a_call_has_its_details(record, model, optimizer):
    schedule = StepLR(optimizer, 1, gamma=0.5)

    def training():
        F.mse_loss(model(X), Y).backward()
        clip_grad_norm_(model.parameters(), 0.25)
        nn.utils.clip_grad_value_(model.parameters(), 0.125)
        optimizer.step()
        schedule.step()
        model.zero_grad()
        optimizer.zero_grad()
        model.eval()

    run = record(training)
    norm, value = details(run, "clip")
    assert norm["max_norm"] == 0.25
    assert norm["total_norm"] > 0
    assert value == {"max_value": 0.125}
    assert details(run, "step") == [{"optimizer": "SGD", "lr": [0.5]}]
    assert details(run, "scheduler") == [{"scheduler": "StepLR", "initial": False, "lr": [0.25], "position": 1}]
    assert details(run, "zero_grad") == [{"of": "Linear"}, {"of": "SGD"}]
    assert details(run, "eval") == [{"module": "Linear"}]


def test_the_norm_that_clipping_found_is_the_one_it_returned(record, model):
    norms = []

    def training():
        F.mse_loss(model(X), Y).backward()
        norms.append(clip_grad_norm_(model.parameters(), 0.25).item())

    assert details(record(training), "clip")[0]["total_norm"] == norms[0]


def test_clipping_is_seen_however_it_was_imported(record, model):
    def training():
        F.mse_loss(model(X), Y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        torch.nn.utils.clip_grad.clip_grad_norm_(model.parameters(), 3.0)

    assert [d["max_norm"] for d in details(record(training), "clip")] == [1.0, 2.0, 3.0]


def test_a_norm_that_is_not_finite_is_noted_as_such(record, model):
    def training():
        (F.mse_loss(model(X), Y) * torch.inf).backward()
        clip_grad_norm_(model.parameters(), 1.0)

    assert not np.isfinite(details(record(training), "clip")[0]["total_norm"])


def test_loading_reports_missing_keys(record, model):
    run = record(lambda: model.load_state_dict({"weight": torch.ones(2, 3), "other": torch.ones(1)}, strict=False))
    assert details(run, "load") == [
        {
            "into": "Linear",
            "num_missing": 1,
            "num_unexpected": 1,
            "missing": ["bias"],
            "unexpected": ["other"],
            "num_keys": 2,
            "num_given": 2,
            "is_own": False,
        }
    ]


def test_a_model_that_loads_its_own_tensors_is_seen(record, model):
    run = record(lambda: model.load_state_dict(model.state_dict()))
    assert details(run, "load")[0]["is_own"]


def test_an_optimizer_loads_too(record, optimizer):
    run = record(lambda: optimizer.load_state_dict(optimizer.state_dict()))
    assert details(run, "load")[0]["into"] == "SGD"


def test_a_load_that_raises_is_no_load(record, model, optimizer):
    def training():
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({})
        step(model, optimizer)

    assert calls(record(training), "load") == []


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda optimizer: StepLR(optimizer, 1),
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda epoch: 0.5),
    "LambdaLR of numpy": lambda optimizer: LambdaLR(optimizer, lambda epoch: np.float32(0.5)),
    "OneCycleLR": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=10),
    "SequentialLR": lambda optimizer: SequentialLR(optimizer, [StepLR(optimizer, 1), StepLR(optimizer, 2)], [1]),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_scheduler_is_one_call_with_the_rates_it_set(record, model, optimizer, make):
    schedule = make(optimizer)
    rates = []

    def training():
        for _ in range(2):
            step(model, optimizer)
            schedule.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))

    run = record(training)
    assert [(d["scheduler"], d["lr"]) for d in details(run, "scheduler")] == [
        (type(schedule).__name__, [rate]) for rate in rates
    ]


def test_a_scheduler_that_looks_at_the_loss_is_seen(record, model, optimizer):
    schedule = ReduceLROnPlateau(optimizer, patience=0)

    def training():
        step(model, optimizer)
        schedule.step(1.0)

    assert calls(record(training), "scheduler") == ["scheduler"]


def test_a_scheduler_made_inside_the_block_says_that_its_first_call_is_its_own(record, model, optimizer):
    def training():
        schedule = StepLR(optimizer, 1)
        step(model, optimizer)
        schedule.step()

    assert [d["initial"] for d in details(record(training), "scheduler")] == [True, False]


def test_a_rate_that_is_a_tensor_is_noted_as_a_number(record, model):
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25))
    run = record(lambda: step(model, optimizer))
    assert details(run, "step")[0]["lr"] == [0.25]
    assert run.metrics()[0].lr == 0.25


def test_train_and_eval_of_a_deep_model_are_one_call_each(record):
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), nn.Linear(2, 2))

    def training():
        model.train()
        model(X).sum().backward()
        model.eval()

    assert calls(record(training), "train", "eval") == ["train", "eval"]


def test_a_model_that_freezes_its_norms_reports_both_modes(record):
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self[1].eval()
            return self

    model = Frozen(nn.Linear(3, 2), nn.BatchNorm1d(2))

    def training():
        model.train()
        model(X).sum().backward()

    assert [c.detail_as(ModeDetail).module for c in record(training).calls() if c.call in ("train", "eval")] == [
        "Frozen", "BatchNorm1d",
    ]  # fmt: skip


def test_calls_carry_the_microbatch_they_came_in(record, model, optimizer):
    def training():
        for _ in range(3):
            F.mse_loss(model(X), Y).backward()
        optimizer.step()

    assert [(c.call, c.microbatch) for c in record(training).calls()] == [
        ("backward", 0), ("backward", 1), ("backward", 2), ("step", 3),
    ]  # fmt: skip


def test_calls_of_unrecorded_steps_are_noted_too(record, model, optimizer):
    run = record(lambda: [step(model, optimizer) for _ in range(3)], steps=[1])
    assert [(c.step, c.call) for c in run.calls()] == [
        (0, "zero_grad"), (0, "backward"), (0, "step"), (0, "zero_grad"),  # a step ends where the next forward begins
        (1, "backward"), (1, "step"), (1, "zero_grad"),
        (2, "backward"), (2, "step"),
    ]  # fmt: skip


def test_a_call_that_was_wrapped_can_still_be_pickled(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with recording(to=tmp_path / "run"):
            texts = [pickle.dumps(function) for function in (torch.save, nn.utils.clip_grad_value_)]
    assert [pickle.loads(text) for text in texts] == [torch.save, nn.utils.clip_grad_value_]


def test_what_another_thread_does_is_left_alone(record, model, optimizer):
    other = nn.Linear(3, 2)
    of_other = torch.optim.Adam(other.parameters())
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            for _ in range(20):
                step(other, of_other)
                with torch.no_grad():
                    other(X)
        except BaseException as error:
            errors.append(error)

    def training():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        for _ in range(5):
            step(model, optimizer)
        thread.join(timeout=300)

    run = record(training)
    assert errors == []
    assert [(m.step, m.optimizer) for m in run.metrics()] == [(n, "SGD") for n in range(5)]
    assert {e.site for e in run.iter_events()} == {"<model>", "<loop>"}
    assert calls(run) == ["zero_grad", "backward", "step"] * 5


def test_a_training_in_another_thread_is_not_followed_and_that_is_said(tmp_path, model, optimizer, capsys):
    def training() -> None:
        thread = threading.Thread(target=step, args=(model, optimizer))
        thread.start()
        thread.join(timeout=300)

    with recording(to=tmp_path / "run"):
        training()
    assert "in another thread, which a recording does not follow" in capsys.readouterr().err


# -- nothing is left behind --------------------------------------------------------------------------------------------


def everything_patched() -> list[Any]:
    """What a recording touches in torch and in Python."""
    import torch.nn.modules.module as modules
    import torch.optim.optimizer as optimizers
    from torch.nn.utils import clip_grad

    scaler, schedule = torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler
    return [
        list(modules._global_forward_hooks.items()),
        list(modules._global_forward_pre_hooks.items()),
        list(modules._global_forward_hooks_always_called.items()),
        list(modules._global_forward_hooks_with_kwargs.items()),
        list(modules._global_backward_hooks.items()),
        list(optimizers._global_optimizer_pre_hooks.items()),
        list(optimizers._global_optimizer_post_hooks.items()),
        torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        clip_grad._clip_grads_with_norm_,
        clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_,
        nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_,
        torch.save, torch.serialization.save, torch.load,
        torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.load_state_dict, torch.optim.SGD.step,
        nn.Module.train, nn.Module.zero_grad, nn.Module.load_state_dict, nn.Module.__call__,
        schedule.step, ReduceLROnPlateau.step, SequentialLR.step,
        scaler.step, scaler.scale, scaler.unscale_, scaler.update,
        list(_get_current_dispatch_mode_stack()),
        torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
        torch._C._len_torch_function_stack(),
        list(warnings.filters),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.data.DataLoader.__iter__,
        threading.active_count(),
        stance(),
    ]  # fmt: skip


def stance() -> Any:
    from torch._dynamo.eval_frame import _stance

    return _stance.stance


class Own(TorchDispatchMode):
    """A mode of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def raising(*_: Any) -> None:
    raise ZeroDivisionError


class Raising(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise ZeroDivisionError


class RaisingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ZeroDivisionError


class RaisingStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        raise ZeroDivisionError


def raise_in_forward() -> None:
    nn.Sequential(nn.Linear(3, 3), Raising(3, 2))(X)


def raise_in_backward() -> None:
    RaisingBackward.apply(nn.Linear(3, 2)(X)).sum().backward()


def raise_in_step() -> None:
    model = nn.Linear(3, 2)
    step(model, RaisingStep(model.parameters(), lr=0.1))


def raise_in_a_hook() -> None:
    model = nn.Linear(3, 2)
    model.register_forward_hook(raising)
    model(X)


def raise_in_a_closure() -> None:
    torch.optim.LBFGS(nn.Linear(3, 2).parameters()).step(raising)


def raise_between() -> None:
    model = nn.Linear(3, 2)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    raise ZeroDivisionError


def raise_inside_a_mode() -> None:
    with Own():
        raise_in_forward()


RAISING = [
    raise_in_forward, raise_in_backward, raise_in_step, raise_in_a_hook, raise_in_a_closure, raise_between,
    raise_inside_a_mode,
]  # fmt: skip


@pytest.mark.parametrize("training", RAISING)
@pytest.mark.parametrize("options", [{}, {"level": "tensors", "inputs": True, "stacks": True}], ids=["plain", "all"])
def test_removes_everything_when_the_training_raises(tmp_path, training, options):
    before = everything_patched()
    with pytest.raises(ZeroDivisionError), recording(to=tmp_path / "run", **options):
        training()
    assert everything_patched() == before
    assert Run.open(tmp_path / "run").info.status == "failed"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_removes_everything_when_the_training_is_interrupted(tmp_path, model, optimizer, error):
    def training() -> None:
        step(model, optimizer)
        raise error

    before = everything_patched()
    with pytest.raises(error), recording(to=tmp_path / "run"):
        training()
    assert everything_patched() == before
    assert len(Run.open(tmp_path / "run").metrics()) == 1


@pytest.mark.parametrize("steps", [None, [0], [1], range(1, 3)])
def test_removes_everything_when_the_training_ends_normally(tmp_path, model, optimizer, steps):
    before = everything_patched()
    with recording(to=tmp_path / "run", steps=steps):
        for _ in range(3):
            step(model, optimizer)
    assert everything_patched() == before


@pytest.mark.parametrize("steps", [None, [0], [1], [2], [0, 2]])
def test_removes_everything_in_a_loop_of_plain_functions(tmp_path, steps):
    before = everything_patched()
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with recording(to=tmp_path / "run", steps=steps):
        for _ in range(4):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    assert everything_patched() == before


def test_hooks_that_others_have_are_left_in_place(tmp_path, model, optimizer):
    seen: list[str] = []
    x = X.clone().requires_grad_()

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    handles = [
        nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global forward")),
        model.register_forward_hook(lambda *_: seen.append("forward")),
        model.register_full_backward_hook(lambda *_: seen.append("backward")),
        optimizer.register_step_post_hook(lambda *_: seen.append("step")),
    ]
    with recording(to=tmp_path / "run"):
        handles.append(model.register_forward_pre_hook(lambda *_: seen.append("pre")))
        step()
    step()
    assert seen == ["pre", "global forward", "forward", "backward", "step"] * 2
    for handle in handles:
        handle.remove()


def test_a_hook_that_replaces_the_output_still_does(tmp_path, model):
    plain = model(X)
    handle = model.register_forward_hook(lambda module, args, output: output * 2)
    with recording(to=tmp_path / "run"):
        doubled = model(X)
    handle.remove()
    assert torch.equal(doubled, plain * 2)


def test_a_patch_that_others_put_around_ours_stays(tmp_path, model, optimizer, monkeypatch):
    noted = []
    before = torch.save
    with recording(to=tmp_path / "run"):
        ours = torch.save

        def around(*args: Any, **kwargs: Any) -> None:
            noted.append(args[1])
            ours(*args, **kwargs)

        torch.save = around
        step(model, optimizer)
        torch.save({}, tmp_path / "a.pt")
    assert torch.save is around
    torch.save({}, tmp_path / "b.pt")
    torch.save = before
    assert noted == [tmp_path / "a.pt", tmp_path / "b.pt"]
    assert calls(Run.open(tmp_path / "run"), "save") == ["save"]


def small_training() -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        step(model, optimizer)
        with torch.inference_mode():
            model(X)
    return [p.detach().clone() for p in model.parameters()]


@contextlib.contextmanager
def around(mode: Own, folder: Path, **options: Any) -> Iterator[None]:
    with mode, recording(to=folder, **options):
        yield


@contextlib.contextmanager
def inside(mode: Own, folder: Path, **options: Any) -> Iterator[None]:
    with recording(to=folder, **options), mode:
        yield


@pytest.mark.parametrize("nested", [around, inside])
@pytest.mark.parametrize(
    "options", [{}, {"level": "tensors"}, {"inputs": True}, {"steps": [1]}, {"stacks": True}], ids=str
)
def test_a_mode_of_the_user_sees_the_same_ops_as_without_us(tmp_path, nested, options):
    plain = Own()
    with plain:
        weights = small_training()
    before = everything_patched()
    observed = Own()
    with nested(observed, tmp_path / "run", **options):
        recorded = small_training()
    assert everything_patched() == before
    assert observed.seen == plain.seen
    assert all(torch.equal(a, b) for a, b in zip(weights, recorded, strict=True))
    products = Run.open(tmp_path / "run").iter_events(op="aten.addmm", phase="forward")
    assert len([e for e in products if e.output == "output0"]) == (2 if "steps" in options else 6)


def test_a_mode_entered_before_and_left_inside_does_no_harm(tmp_path, model, optimizer):
    before = everything_patched()
    own = Own()
    with recording(to=tmp_path / "run", steps=[1]):
        step(model, optimizer)
        with own:
            step(model, optimizer)  # recording starts while the mode is on
        step(model, optimizer)
    assert everything_patched() == before
    assert [m.step for m in Run.open(tmp_path / "run").metrics()] == [0, 1, 2]


def test_a_flop_counter_counts_the_same(tmp_path):
    with FlopCounterMode(display=False) as plain:
        small_training()
    with recording(to=tmp_path / "run", steps=[0, 2], level="tensors"), FlopCounterMode(display=False) as counter:
        small_training()
    assert counter.get_flop_counts() == plain.get_flop_counts()


def test_a_function_mode_of_the_user_sees_nothing_of_us(tmp_path):
    class Counting(torch.overrides.TorchFunctionMode):
        num_calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.num_calls += 1
            return func(*args, **(kwargs or {}))

    with Counting() as plain:
        small_training()
    with Counting() as observed, recording(to=tmp_path / "run", level="tensors", inputs=True):
        small_training()
    assert observed.num_calls == plain.num_calls


def test_nested_recordings_both_record_and_do_not_see_each_other(tmp_path):
    before = everything_patched()
    with recording(to=tmp_path / "alone"):
        weights = small_training()
    with recording(to=tmp_path / "outer"), recording(to=tmp_path / "inner", level="tensors"):
        recorded = small_training()
    assert everything_patched() == before
    assert all(torch.equal(a, b) for a, b in zip(weights, recorded, strict=True))
    alone, outer, inner = (Run.open(tmp_path / name) for name in ("alone", "outer", "inner"))
    rows = [[(e.key, e.hash) for e in run.iter_events()] for run in (alone, outer, inner)]
    assert rows[0] == rows[1] == rows[2]
    assert calls(alone) == calls(outer) == calls(inner)


def test_two_recordings_one_after_another_are_alike(tmp_path):
    for name in ("first", "second"):
        with recording(to=tmp_path / name):
            small_training()
    first, second = (Run.open(tmp_path / name) for name in ("first", "second"))
    assert [(e.key, e.hash) for e in first.iter_events()] == [(e.key, e.hash) for e in second.iter_events()]


def test_a_call_without_seconds_reads_back():
    assert Call(step=0, call="step").seconds == 0.0


def test_reading_a_checkpoint_reports_where_its_optimizer_state_is(record, tmp_path):
    def training() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.25
        saved = {"model": model.state_dict(), "trainer": {"opt": optimizer.state_dict()}}
        torch.save(saved, tmp_path / "full.pt")
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        torch.load(tmp_path / "full.pt")
        torch.load(tmp_path / "weights.pt")

    read = details(record(training), "read")
    assert [detail["optimizer_states"] for detail in read] == [["opt"], []]
    assert [detail["optimizer_rates"] for detail in read] == [[0.25, 0.5], []]
