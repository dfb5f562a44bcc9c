"""Every private call into torch that roundoff makes, in one place, so that a new torch breaks one file.

`probe` tries each of them; `roundoff doctor` prints the answer.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    "in_functional_transform",
    "keyword_arguments",
    "local_tensor",
    "next_sequence_number",
    "probe",
    "push_mode",
    "remove_mode",
    "running_eagerly",
]


class DispatchMode(TorchDispatchMode):
    """A dispatch mode without dynamo's wrapper around each op: recorded steps never run compiled."""

    supports_higher_order_operators = True

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
    return torch._C._autograd._get_sequence_nr  # type: ignore[no-any-return, attr-defined]


def autograd_node() -> Callable[[], Any]:
    """Return the function that tells which autograd node is running backward now, or None."""
    return torch._C._current_autograd_node  # type: ignore[no-any-return, attr-defined]


def engine_module() -> tuple[Any, str]:
    """Return where `backward` and `grad` look up the call that starts the autograd engine."""
    return torch.autograd, "_engine_run_backward"


def clip_module() -> tuple[Any, str]:
    """Return where `clip_grad_norm_` looks up the function that scales the gradients, however it was imported."""
    import torch.nn.utils.clip_grad

    return torch.nn.utils.clip_grad, "_clip_grads_with_norm_"


def push_mode(mode: DispatchMode) -> None:
    """Make every op of this thread pass through `mode`."""
    mode.__enter__()


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
    mode.__exit__(None, None, None)
    for entry in reversed(above):
        entry.__enter__()


@contextlib.contextmanager
def running_eagerly() -> Iterator[None]:
    """Run compiled models eagerly inside the block, without compiling or forgetting anything."""
    with torch.compiler.set_stance("force_eager"):
        yield


def in_functional_transform() -> bool:
    """Say whether vmap, grad or another transform of torch.func is active: its tensors have no memory of their own."""
    return bool(torch._C._functorch.peek_interpreter_stack() is not None)


def keyword_arguments() -> dict[str, Any]:
    """Return the keyword arguments of the module call whose global pre-forward hook is running; hooks do not get them."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "inner" and frame.f_code.co_filename == torch.nn.modules.module.__file__:
            kwargs = frame.f_locals.get("kwargs")
            return kwargs if isinstance(kwargs, dict) else {}
        frame = frame.f_back  # type: ignore[assignment]
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
        ("torch._C._functorch.peek_interpreter_stack", "leaving torch.func alone", in_functional_transform),
    ]
    return [PrivateCall(name=name, present=_works(call), used_for=used_for) for name, used_for, call in tried]


def _works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:
        return False
    return True


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
