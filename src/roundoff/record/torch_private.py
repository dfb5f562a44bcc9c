"""Every private call into torch that roundoff makes, in one place, so that a new torch breaks one file.

`probe` tries each of them; `roundoff doctor` prints the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

__all__ = [
    "DispatchMode",
    "PrivateCall",
    "WeakIdKeyDictionary",
    "autograd_node",
    "clip_module",
    "engine_module",
    "keyword_arguments",
    "local_tensor",
    "next_sequence_number",
    "probe",
    "push_mode",
    "remove_mode",
]


class DispatchMode(TorchDispatchMode):
    """A dispatch mode without dynamo's wrapper around each op: recorded steps never run compiled."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateCall:
    """One private call of torch, and whether this torch has it."""

    name: str
    present: bool
    used_for: str


def next_sequence_number() -> Callable[[], int]:
    """Return the function that tells which number the next autograd node of this thread will get."""
    return torch._C._autograd._get_sequence_nr


def autograd_node() -> Callable[[], Any]:
    """Return the function that tells which autograd node is running backward now, or None."""
    return torch._C._current_autograd_node


def engine_module() -> tuple[Any, str]:
    """Return where `backward` and `grad` look up the call that starts the autograd engine."""
    return torch.autograd, "_engine_run_backward"


def clip_module() -> tuple[Any, str]:
    """Return where `clip_grad_norm_` looks up the function that scales the gradients, however it was imported."""
    import torch.nn.utils.clip_grad

    return torch.nn.utils.clip_grad, "_clip_grads_with_norm_"


def push_mode(mode: DispatchMode) -> None:
    """Make every op of this thread pass through `mode`."""
    mode.__enter__()  # type: ignore[no-untyped-call]


def remove_mode(mode: DispatchMode) -> None:
    """Take `mode` off, also from below modes that were entered after it and are still on."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    above = []
    stack = list(_get_current_dispatch_mode_stack())
    if not any(entry is mode for entry in stack):
        return
    while stack and stack[-1] is not mode:
        above.append(stack.pop())
        above[-1].__exit__(None, None, None)
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for entry in reversed(above):
        entry.__enter__()


def keyword_arguments() -> dict[str, Any]:
    """Return the keyword arguments of the module call whose pre-forward hook is running; global hooks get none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "inner" and frame.f_code.co_filename == torch.nn.modules.module.__file__:
            kwargs = frame.f_locals.get("kwargs")
            return kwargs if isinstance(kwargs, dict) else {}
        frame = frame.f_back
    return {}


def local_tensor(x: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor that this rank holds of a DTensor, or None for other tensor subclasses."""
    local = getattr(x, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else None


def probe() -> list[PrivateCall]:
    """Try every private call and say which of them this torch has."""
    tried: list[tuple[str, str, Callable[[], Any]]] = [
        ("torch._C._autograd._get_sequence_nr", "the site of each backward op", lambda: next_sequence_number()()),
        ("torch._C._current_autograd_node", "the site of each backward op", lambda: autograd_node()()),
        ("torch.autograd._engine_run_backward", "seeing backward() begin and end", lambda: getattr(*engine_module())),
        ("torch.nn.utils.clip_grad._clip_grads_with_norm_", "seeing clipping", lambda: getattr(*clip_module())),
        ("torch.utils._python_dispatch.TorchDispatchMode", "seeing every op", _try_mode),
        ("torch.compiler.set_stance", "recording compiled models", lambda: torch.compiler.set_stance),
        ("torch.nn.Module._call_impl", "batches given as keyword arguments", _try_keyword_arguments),
    ]
    return [PrivateCall(name=name, present=_works(call), used_for=used_for) for name, used_for, call in tried]


def _works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:
        return False
    return True


def _try_keyword_arguments() -> None:
    class Module(torch.nn.Module):
        def forward(self, *, x: int) -> int:
            return x

    seen: list[dict[str, Any]] = []
    module = Module()
    hook = module.register_forward_pre_hook(lambda module, args: seen.append(keyword_arguments()))
    module(x=1)
    hook.remove()
    if seen != [{"x": 1}]:
        raise RuntimeError("the call's keyword arguments were not found")


def _try_mode() -> None:
    class Counting(DispatchMode):
        num_ops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.num_ops += 1
            return func(*args, **(kwargs or {}))

    mode = Counting()
    push_mode(mode)
    try:
        torch.zeros(1)
    finally:
        remove_mode(mode)
    if mode.num_ops == 0:
        raise RuntimeError("the mode saw no op")
