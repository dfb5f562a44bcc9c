"""The private names of torch that roundoff uses, in one place, so that a new torch breaks one file.

`PRIVATE_NAMES` lists them, `probe` looks up each and tries those whose behaviour matters, and `roundoff doctor` prints
the result. Outside this file, one private name is left: `precision`, which cannot import this room, counts dispatch
modes and does without if torch has no such count.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakIdKeyDictionary

__all__ = [
    "DispatchMode",
    "FunctionMode",
    "OpOverload",
    "OpOverloadPacket",
    "PrivateCall",
    "WeakIdKeyDictionary",
    "autograd_node",
    "clip_module",
    "compiler_is_loaded",
    "correct_mode_flags",
    "correct_mode_keys",
    "decomposition_of",
    "default_store",
    "engine_module",
    "has_function_modes",
    "has_no_memory",
    "hidden_from_functions",
    "hidden_from_modes",
    "in_compiled_code",
    "in_function_transform",
    "is_composite",
    "is_innermost",
    "is_only_mode",
    "is_tracing",
    "is_transformed",
    "keep_group_of",
    "keep_process_group",
    "keyword_arguments",
    "local_tensor",
    "never_compiled",
    "next_sequence_number",
    "num_running_modules",
    "num_running_steps",
    "one_by_one",
    "preserved_versions",
    "probe",
    "push_function_mode",
    "push_mode",
    "remove_function_mode",
    "remove_mode",
    "scale_of",
    "seen_as_in_training",
    "tree_flatten",
    "tree_map",
    "weight_norm_function",
]


_KEPT_GROUPS: set[int] = set()
_PARTS_OF_TRAINING: list[DispatchMode] = []
_PYTHON = torch._C.DispatchKey.Python

_Function = TypeVar("_Function", bound=Callable[..., Any])


class DispatchMode(TorchDispatchMode):
    """A dispatch mode without dynamo's wrapper around each op: recorded steps never run compiled."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class FunctionMode(TorchFunctionMode):
    """A mode that sees the calls of torch functions."""

    def __init__(self) -> None:
        super().__init__()


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


def push_mode(mode: DispatchMode, *, is_part_of_training: bool = False) -> None:
    """Make every op of this thread pass through `mode`, after the modes of others.

    A `with` block of theirs takes the topmost mode off when it ends, so ours goes to the bottom. A mode that is part of
    how the training computes is there in replays, too.
    """
    if is_part_of_training:
        _PARTS_OF_TRAINING.append(mode)
    with _set_aside(_others_on_stack()):
        mode.__enter__()  # type: ignore[no-untyped-call]
    correct_mode_flags()


def remove_mode(mode: DispatchMode) -> bool:
    """Take `mode` off, also from below modes that were entered after it and are still on.

    False if it cannot be found: torch has taken it aside for the time of an op that passes through it.
    """
    _PARTS_OF_TRAINING[:] = [entry for entry in _PARTS_OF_TRAINING if entry is not mode]
    return _take_off(mode)


def _take_off(mode: DispatchMode) -> bool:
    stack = _others_on_stack()
    if not any(entry is mode for entry in stack):
        return False
    with _set_aside(stack[[entry is mode for entry in stack].index(True) + 1 :]):
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    correct_mode_flags()
    return True


def push_function_mode(mode: TorchFunctionMode) -> None:
    """Make every call of a torch function in this thread pass through `mode`, after the modes of others."""
    others = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    for entry in (mode, *reversed(others)):
        torch._C._push_on_torch_function_stack(entry)


def remove_function_mode(mode: TorchFunctionMode) -> None:
    """Take `mode` off, also from below modes that were entered after it; nothing if it is not on."""
    others = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    for entry in reversed(others):
        if entry is not mode:
            torch._C._push_on_torch_function_stack(entry)


def preserved_versions(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Set the version counters of tensors back at the end of the block, as if nobody had written into them."""
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors))


def _others_on_stack() -> list[TorchDispatchMode]:
    """Return the modes of this thread, the topmost last, without those that torch itself works with."""
    return [mode for mode in python_dispatch._get_current_dispatch_mode_stack() if not mode.is_infra_mode()]


@contextlib.contextmanager
def _set_aside(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """Take the topmost modes off for the time of the block, without leaving and entering them: that would tell them."""
    for _ in modes:
        python_dispatch._pop_mode()
    try:
        yield
    finally:
        for mode in modes:
            python_dispatch._push_mode(mode)


def correct_mode_flags() -> None:
    """Tell torch which kinds of modes are on: it remembers that by the order in which they were entered."""
    stack = python_dispatch._get_current_dispatch_mode_stack()
    python_dispatch._is_in_torch_dispatch_mode = bool(stack)
    python_dispatch._is_in_non_infra_torch_dispatch_mode = any(not mode.is_infra_mode() for mode in stack)
    is_seen = any(not mode.ignore_compile_internals() for mode in stack)
    python_dispatch._is_in_any_mode_without_ignore_compile_internals = is_seen
    # looked up here, not when this file is imported: without it, `roundoff doctor` can still say what is missing
    from torch._C._dynamo.guards import set_is_in_mode_without_ignore_compile_internals

    set_is_in_mode_without_ignore_compile_internals(is_seen)


def correct_mode_keys() -> None:
    """Have torch look for modes again, after compiled code that ended has made it forget those entered inside."""
    if torch._C._len_torch_dispatch_stack() and not torch._C._dispatch_tls_is_dispatch_key_included(_PYTHON):
        torch._C._dispatch_tls_set_dispatch_key_included(_PYTHON, True)
        torch._C._dispatch_tls_set_dispatch_key_included(torch._C.DispatchKey.PythonTLSSnapshot, True)


@contextlib.contextmanager
def hidden_from_modes() -> Iterator[None]:
    """Keep the ops of the block from every mode and transform that the user has entered, and from our mode."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(hidden_from_functions())
        if in_function_transform():
            stack.enter_context(torch._C._DisableFuncTorch())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(python_dispatch._disable_current_modes())
        yield


def hidden_from_functions() -> contextlib.AbstractContextManager[None]:
    """Keep the calls of the block from modes that see every call of a torch function; cheaper than from all modes."""
    return torch._C.DisableTorchFunction()


@contextlib.contextmanager
def seen_as_in_training() -> Iterator[None]:
    """Let the block compute as the training does, inside a block that is hidden from modes.

    Modes that see functions are on again, and of those that see ops the ones that are part of how it computes.
    """
    missing = [mode for mode in _PARTS_OF_TRAINING if all(entry is not mode for entry in _others_on_stack())]
    with torch._C._EnableTorchFunction(), contextlib.ExitStack() as stack:
        for mode in missing:
            push_mode(mode)
            stack.callback(_take_off, mode)
        yield


def has_function_modes() -> bool:
    """Say whether a mode is on that sees every call of a torch function, such as `with torch.device(...)`."""
    return torch._C._len_torch_function_stack() > 0


def is_composite(func: Any) -> bool:
    """Say whether an operator is only a name for a few others, with no kernel of its own, which rounds its own way."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
    except RuntimeError:  # an overload that only the schema parser knows
        return False


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """Return a function that computes what an operator does by other operators, if torch has one."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def one_by_one(op: Any) -> Callable[..., Any]:
    """Return the kernel of a `_foreach_` operator that goes from tensor to tensor."""
    return functools.partial(op._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)


def is_only_mode() -> bool:
    """Say whether nobody else's dispatch mode waits for the op that is passing through ours."""
    return all(isinstance(mode, DispatchMode) for mode in python_dispatch._get_current_dispatch_mode_stack())


def is_innermost(mode: DispatchMode) -> bool:
    """Say whether no other mode sees ops after this one; where all are hidden, none does."""
    return _others_on_stack()[:1] in ([], [mode])


def never_compiled(function: _Function) -> _Function:
    """Keep the compiler from looking at a function, and at what it calls, where it runs amid compiled code."""
    from torch._C._dynamo import eval_frame

    strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    vars(function)["_torchdynamo_disable"] = True  # where it is called from code that is being compiled
    vars(function)["_torchdynamo_disable_msg"] = "it belongs to roundoff"
    return function


def compiler_is_loaded() -> bool:
    """Say whether anything can be compiled; the compiler is not loaded before somebody asks for it."""
    return "torch._dynamo" in sys.modules


def in_compiled_code() -> bool:
    """Say whether a compiled function, or one that was to be compiled, is on this thread's stack."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and _num_frames(None, str(dynamo.__file__)) > 0


def is_tracing() -> bool:
    """Say whether a compiler runs code on tensors of its own, to learn what it does."""
    return any(mode.is_infra_mode() for mode in python_dispatch._get_current_dispatch_mode_stack())


def in_function_transform() -> bool:
    """Say whether a transform of torch.func (grad, vmap, ...) is running."""
    return torch._C._functorch.maybe_current_level() is not None


def has_no_memory(x: torch.Tensor) -> bool:
    """Say whether a tensor of the plain class is one without memory of its own that could be read as it is."""
    is_strided = x.layout is torch.strided
    return not is_strided or x.is_nested or x.is_quantized or is_transformed(x) or x.data_ptr() == 0


def is_transformed(x: torch.Tensor) -> bool:
    """Say whether a tensor stands for others inside a transform of torch.func; its ops show the real ones."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def num_running_modules() -> int:
    """Count the module calls on this thread's stack."""
    return _num_frames("inner", torch.nn.modules.module.__file__)


def num_running_steps() -> int:
    """Count the optimizer steps on this thread's stack."""
    return _num_frames("wrapper", torch.optim.Optimizer.profile_hook_step.__code__.co_filename)


def _num_frames(function: str | None, filename: str) -> int:
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None:
        count += frame.f_code.co_name == (function or frame.f_code.co_name) and frame.f_code.co_filename == filename
        frame = frame.f_back
    return count


def scale_of(scaler: Any) -> torch.Tensor | None:
    """Return what a GradScaler multiplies the loss with, on its device; None if it is off."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None


def keyword_arguments() -> dict[str, Any]:
    """Return the keyword arguments of the module call whose pre-forward hook is running; global hooks get none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "inner" and frame.f_code.co_filename == torch.nn.modules.module.__file__:
            kwargs = frame.f_locals.get("kwargs")
            return kwargs if isinstance(kwargs, dict) else {}
        frame = frame.f_back
    return {}


def keep_group_of(args: Sequence[Any]) -> None:
    """Keep the process group of a collective for as long as this process lives."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":  # type: ignore[attr-defined]
            keep_process_group(torch.distributed.ProcessGroup.unbox(arg))


def keep_process_group(group: object) -> None:
    """Keep a process group for as long as this process lives, its end included.

    Freeing a group waits for its threads with Python's lock held. The tensors of a collective that passed through a
    dispatch mode have Python objects, so a gloo thread that gives one back needs that lock: without this, whoever drops
    the last reference (a DDP model that goes out of scope, Python as it clears its modules) could wait for ever.
    """
    if id(group) not in _KEPT_GROUPS:
        _KEPT_GROUPS.add(id(group))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def local_tensor(x: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor that this rank holds of a DTensor, or None for other tensor subclasses."""
    local = getattr(x, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else None


def default_store() -> Any:
    """Return the key-value store that the ranks of the default process group share; raises if there is none."""
    return torch.distributed.distributed_c10d._get_default_store()


def weight_norm_function() -> Callable[..., Any]:
    """Return what the old `torch.nn.utils.weight_norm` computes weights with."""
    return torch._weight_norm


PRIVATE_NAMES: dict[str, str] = {
    "torch._C._autograd._get_sequence_nr": "the site of each backward op",
    "torch._C._current_autograd_node": "the site of each backward op",
    "torch.autograd._engine_run_backward": "seeing backward() begin and end",
    "torch.autograd.grad_mode._unsafe_preserve_version_counter": "swapping tensors without autograd noticing",
    "torch.nn.utils.clip_grad._clip_grads_with_norm_": "seeing clipping",
    "torch._C.DispatchKey": "seeing every op",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "ops made of other ops",
    "torch._C._dispatch_tls_is_dispatch_key_included": "recording compiled models",
    "torch._C._dispatch_tls_set_dispatch_key_included": "recording compiled models",
    "torch._C._len_torch_dispatch_stack": "seeing every op",
    "torch._C._len_torch_function_stack": "seeing the loop's own functions",
    "torch._C._pop_torch_function_stack": "seeing the loop's own functions",
    "torch._C._push_on_torch_function_stack": "seeing the loop's own functions",
    "torch._C._DisableFuncTorch": "hiding our own ops",
    "torch._C.DisableTorchFunction": "hiding our own ops",
    "torch._C._EnableTorchFunction": "replaying steps as the training computes them",
    "torch._C._functorch.maybe_current_level": "transforms of torch.func",
    "torch._C._functorch.is_functorch_wrapped_tensor": "transforms of torch.func",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": "compiled training steps",
    "torch._C._dynamo.eval_frame._FrameExecStrategy": "compiled training steps",
    "torch._C._dynamo.eval_frame._FrameAction": "compiled training steps",
    "torch._C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals": "compiled training steps",
    "torch.utils._python_dispatch.TorchDispatchMode": "seeing every op",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": "seeing every op",
    "torch.utils._python_dispatch._pop_mode": "seeing every op",
    "torch.utils._python_dispatch._push_mode": "seeing every op",
    "torch.utils._python_dispatch._disable_current_modes": "hiding our own ops",
    "torch.utils._python_dispatch._is_in_torch_dispatch_mode": "seeing every op",
    "torch.utils._python_dispatch._is_in_non_infra_torch_dispatch_mode": "seeing every op",
    "torch.utils._python_dispatch._is_in_any_mode_without_ignore_compile_internals": "compiled training steps",
    "torch.utils._pytree.tree_flatten": "switching random numbers",
    "torch.utils._pytree.tree_map": "switching random numbers",
    "torch._ops.OpOverload": "running an op again",
    "torch._ops.OpOverload._op_dk": "running ops on lists one by one",
    "torch._ops.OpOverloadPacket": "running an op again",
    "torch._decomp.decomposition_table": "ops made of other ops",
    "torch._weight_norm": "replaying weight norms",
    "torch.distributed.distributed_c10d._get_default_store": "replaying a step on several ranks",
    "torch.nn.Module._call_impl": "batches given as keyword arguments",
    "torch.amp.GradScaler._scale": "the loss scale of a GradScaler",
}
"""Every private name that this file uses, with what is lost without it; `tests` hold the list to the source."""


def probe() -> list[PrivateCall]:
    """Look up every private name, try those whose behaviour matters, and say which of them this torch has."""
    tried: dict[str, Callable[[], Any]] = {
        "torch._C._autograd._get_sequence_nr": lambda: next_sequence_number()(),
        "torch._C._current_autograd_node": lambda: autograd_node()(),
        "torch.utils._python_dispatch.TorchDispatchMode": _try_mode,
        "torch._C._dynamo.eval_frame.set_code_exec_strategy": lambda: never_compiled(_works),
        "torch._decomp.decomposition_table": _try_decompositions,
        "torch._ops.OpOverload._op_dk": _try_decompositions,  # only instances have it
        "torch.nn.Module._call_impl": _try_keyword_arguments,
        "torch.amp.GradScaler._scale": _try_scale,
        # only where torch was built with them
        "torch.distributed.distributed_c10d._get_default_store": lambda: (
            torch.distributed.is_available() and torch.distributed.distributed_c10d._get_default_store
        ),
    }
    return [
        PrivateCall(name=name, present=_works(tried.get(name, functools.partial(_look_up, name))), used_for=used_for)
        for name, used_for in PRIVATE_NAMES.items()
    ]


def _look_up(name: str) -> Any:
    """Return what a dotted name stands for, importing the modules on the way."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


def _try_scale() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scale = scale_of(scaler)
    if scale is None or float(scale) != 8.0:
        raise RuntimeError("the scale was not found")


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


def _try_decompositions() -> None:
    x = torch.ones(2)
    gelu = decomposition_of(torch.ops.aten.gelu.default)
    if gelu is None or not torch.allclose(gelu(x), torch.nn.functional.gelu(x)):
        raise RuntimeError("gelu is not made of other ops")
    one_by_one(torch.ops.aten._foreach_add_.Scalar)([x], 1.0)
    if x.tolist() != [2.0, 2.0]:
        raise RuntimeError("a list of tensors was not added to")


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
