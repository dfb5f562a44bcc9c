"""The private calls into torch: this torch has them, and they do what we think."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from roundoff.record import torch_private
from roundoff.record.torch_private import (
    DispatchMode,
    autograd_node,
    engine_module,
    has_no_memory,
    hidden_from_modes,
    is_composite,
    keyword_arguments,
    local_tensor,
    next_sequence_number,
    num_running_modules,
    num_running_steps,
    probe,
    push_mode,
    remove_mode,
    scale_of,
)


class Counting(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.num_ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_ops += 1
        return func(*args, **(kwargs or {}))


class Users(TorchDispatchMode):
    entered = 0

    def __enter__(self) -> Users:
        self.entered += 1
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_this_torch_has_every_private_call():
    assert [call.name for call in probe() if not call.present] == []


def test_a_call_that_is_gone_is_reported_with_what_it_was_for(monkeypatch):
    monkeypatch.delattr(torch.nn.utils.clip_grad, "_clip_grads_with_norm_")
    (missing,) = (call for call in probe() if not call.present)
    assert missing.name == "torch.nn.utils.clip_grad._clip_grads_with_norm_"
    assert missing.used_for == "seeing clipping"


def test_every_private_name_that_the_file_uses_is_probed():
    source = Path(torch_private.__file__).read_text()
    used = {f"torch._C.{name}" for name in re.findall(r"\btorch\._C\.([\w.]*\w)", source)}
    used |= {f"torch.utils._python_dispatch.{name}" for name in re.findall(r"\bpython_dispatch\.(_\w+)", source)}
    used |= {f"torch._C._dynamo.eval_frame.{name}" for name in re.findall(r"\beval_frame\.(\w+)", source)}
    listed = set(torch_private.PRIVATE_NAMES)
    missing = {name for name in used if not any(name == x or name.startswith(f"{x}.") for x in listed)}
    assert missing - {"torch._C._dynamo", "torch._C._dynamo.guards"} == set()


def test_probing_leaves_nothing_behind():
    before = list(_get_current_dispatch_mode_stack()), dict(nn.modules.module._global_forward_hooks)
    probe()
    assert (list(_get_current_dispatch_mode_stack()), dict(nn.modules.module._global_forward_hooks)) == before


def test_every_name_on_offer_exists():
    assert [name for name in torch_private.__all__ if not hasattr(torch_private, name)] == []


def test_the_number_of_a_node_is_the_one_it_has_in_backward():
    x = torch.ones(2, requires_grad=True)
    number = next_sequence_number()()
    y = x * 2
    assert y.grad_fn._sequence_nr() == number
    assert next_sequence_number()() == number + 1


def test_the_node_that_runs_backward_is_known():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append(autograd_node()().name())
            return grads[0]

    Look.apply(torch.ones(1, requires_grad=True)).backward()
    assert seen == ["LookBackward"]
    assert autograd_node()() is None


def test_backward_and_grad_start_the_engine_where_we_look(monkeypatch):
    owner, name = engine_module()
    original, calls = getattr(owner, name), []
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: calls.append(args) or original(*args, **kwargs))
    x = torch.ones(1, requires_grad=True)
    (x * 2).backward()
    torch.autograd.grad(x * 2, x)
    assert len(calls) == 2


def test_our_mode_goes_below_those_of_others_and_comes_out_from_there():
    ours = Counting()
    with Users() as first:
        push_mode(ours)
        with Users() as second:
            assert list(_get_current_dispatch_mode_stack()) == [ours, first, second]
            torch.ones(1)
            assert remove_mode(ours)
            assert list(_get_current_dispatch_mode_stack()) == [first, second]
        assert (first.entered, second.entered) == (1, 1)
    assert ours.num_ops == 1
    assert list(_get_current_dispatch_mode_stack()) == []


def test_our_mode_survives_the_end_of_a_block_that_began_before_it():
    ours = Counting()
    with Users():
        push_mode(ours)
    assert list(_get_current_dispatch_mode_stack()) == [ours]
    assert remove_mode(ours)
    assert not remove_mode(ours)
    assert not torch.utils._python_dispatch.is_in_torch_dispatch_mode()


def test_a_mode_cannot_be_removed_from_inside_itself():
    class Leaving(Counting):
        removed: bool | None = None

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.removed = remove_mode(self)
            return func(*args, **(kwargs or {}))

    ours = Leaving()
    push_mode(ours)
    torch.ones(1)
    assert ours.removed is False
    assert remove_mode(ours)


def test_hidden_ops_are_seen_by_nobody():
    with Counting() as ours, torch.device("meta"):
        with hidden_from_modes():
            assert torch.ones(1).device.type == "cpu"
        torch.ones(1)
    assert ours.num_ops == 1


def test_hidden_ops_are_outside_of_transforms():
    kinds = []

    def function(x: Tensor) -> Tensor:
        with hidden_from_modes():
            kinds.append(has_no_memory(torch.ones(2) * 2))
        return x.sum()

    torch.func.grad(function)(torch.ones(3))
    assert kinds == [False]


def test_keyword_arguments_are_those_of_the_call_whose_hook_runs():
    class Inner(nn.Module):
        def forward(self, *, x: int) -> int:
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, *, y: int) -> int:
            return self.inner(x=y + 1)

    model, seen = Outer(), []
    for module in (model, model.inner):
        module.register_forward_pre_hook(lambda module, args: seen.append(dict(keyword_arguments())))
    model(y=1)
    assert seen == [{"y": 1}, {"x": 2}]
    assert keyword_arguments() == {}


def test_running_modules_and_steps_are_counted_on_the_stack():
    counts = []

    class Inner(nn.Module):
        def forward(self) -> None:
            counts.append((num_running_modules(), num_running_steps()))

    outer = nn.Module()
    inner = Inner()
    outer.forward = lambda: inner()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)  # without hooks torch takes a short cut
    optimizer = torch.optim.LBFGS([torch.ones(1, requires_grad=True)])

    def closure() -> Tensor:
        outer()
        return torch.zeros(())

    inner()
    outer()
    optimizer.step(closure)
    handle.remove()
    assert counts[:3] == [(1, 0), (2, 0), (2, 1)]
    assert (num_running_modules(), num_running_steps()) == (0, 0)


def test_the_scale_of_a_scaler_is_known_when_it_is_on():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scale_of(scaler) is None
    scaler.scale(torch.ones(1))
    assert scale_of(scaler) == 8.0
    assert scale_of(torch.amp.GradScaler("cpu", enabled=False)) is None


def test_tensors_without_memory_of_their_own_are_known():
    assert not has_no_memory(torch.ones(2))
    assert has_no_memory(torch._efficientzerotensor(3))
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    assert has_no_memory(freed)


def test_the_local_part_of_a_plain_tensor_is_none():
    assert local_tensor(torch.ones(1)) is None


def test_ops_that_are_made_of_others_are_known():
    assert is_composite(torch.ops.aten.linear.default)
    assert not is_composite(torch.ops.aten.addmm.default)
    assert not is_composite(torch.ops.aten.silu_backward.default)  # it has a kernel beside its composition
