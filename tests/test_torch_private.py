"""The private calls into torch: this torch has them, and they do what we think."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from roundoff import torch_private
from roundoff.cli.torch_probes import ESSENTIAL, PRIVATE_NAMES, STABLE_ATTRIBUTES, probe
from roundoff.torch_private import (
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
    push_mode,
    remove_mode,
    scale_of,
)

PACKAGE = Path(torch_private.__file__).parent
PRIVATE_ATTRIBUTES = {
    name.rpartition(".")[2] for name in PRIVATE_NAMES if re.search(r"\._[^.]+$", name)
} - STABLE_ATTRIBUTES


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
    assert not missing.is_essential


def test_essential_names_are_among_those_that_are_probed():
    assert set(PRIVATE_NAMES) >= ESSENTIAL


def test_every_private_name_that_the_file_looks_up_is_probed():
    source = ast.parse(Path(torch_private.__file__).read_text())
    calls = [node for node in ast.walk(source) if isinstance(node, ast.Call) and node.args]
    looked_up = {text(call.args[0]) for call in calls if ast.unparse(call.func) in ("_find", "look_up")}
    # of eval_frame only three names are used
    assert set(filter(is_private, looked_up)) - set(PRIVATE_NAMES) == {"torch._C._dynamo.eval_frame"}
    read = {text(arg) for call in calls if ast.unparse(call.func) in ("getattr", "hasattr") for arg in call.args[1:2]}
    # the names of the flat weights come with their list
    assert set(filter(is_private, read)) - {name.rpartition(".")[2] for name in PRIVATE_NAMES} == {
        "_flat_weights_names"
    }


def text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_uses_a_private_name_of_torch(path: Path):
    if path != Path(torch_private.__file__):
        assert list(private_names_in(ast.parse(path.read_text()))) == []


def private_names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of torch that a file imports or reads, by name or as attributes of its objects."""
    torchs = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias for alias in node.names if alias.name.partition(".")[0] == "torch"]
            yield from (alias.name for alias in modules if is_private(alias.name))
            torchs |= {alias.asname for alias in modules if alias.asname}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from (alias.name for alias in node.names if is_private(f"{node.module}.{alias.name}"))
            torchs |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        owner = name = ""
        if isinstance(node, ast.Attribute):
            owner, name = ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            owner, name = ast.unparse(node.args[0]), text(node.args[1])
        is_torchs = re.fullmatch(r"[\w.]+", owner) and owner.partition(".")[0] in torchs
        if (is_torchs and is_private(f"{owner}.{name}")) or (
            name in PRIVATE_ATTRIBUTES and owner not in ("self", "cls")
        ):
            yield f"{owner}.{name}"


def is_private(name: str) -> bool:
    return any(re.match(r"_[^_]", part) for part in name.split("."))


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree",
        "from torch import nn\nnn.modules.loss._Loss",
        "import torch\ntorch._foreach_norm([])",
        "import torch\nx = getattr(torch._C, name)",
        "scaler._scale",
        "getattr(node, '_sequence_nr')()",
    ],
)
def test_a_private_name_is_found(source: str):
    assert list(private_names_in(ast.parse(source))) != []


def test_public_names_and_stable_attributes_are_let_through():
    source = (
        "from torch import nn\nimport torch\ntorch.ops.aten.add.Tensor\nx._version\nself._scales\nnn.Module.__call__"
    )
    assert list(private_names_in(ast.parse(source))) == []


def test_probing_leaves_nothing_behind():
    before = list(_get_current_dispatch_mode_stack()), dict(nn.modules.module._global_forward_hooks)
    probe()
    assert (list(_get_current_dispatch_mode_stack()), dict(nn.modules.module._global_forward_hooks)) == before


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


def test_hidden_ops_are_seen_by_no_mode():
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
    assert not is_composite(torch.ops.aten.silu_backward.default)  # it has a kernel besides its composition
