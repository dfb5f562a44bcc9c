"""The private names of torch that roundoff uses, in one place, so that a new torch breaks one file.

Each is looked up by `_find`, with what to use where this torch has no such name: another way to the same, or something
that leaves out the one feature that needs it. cli/torch_probes.py lists them with that feature and tries them for
`roundoff doctor`. A test holds all other files to public names and to `STABLE_ATTRIBUTES`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode as TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary as WeakIdKeyDictionary

OLDEST_TESTED = (2, 10)
NEWEST_TESTED = (2, 15)
"""The torch versions between which the tests have been run: docs/compatibility.md has the results."""


def torch_series() -> tuple[int, int]:
    """Return the first two numbers of torch's version: (2, 13) for 2.13.0+cpu."""
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def untested_version() -> str | None:
    """Return the version of this torch if it is outside those that roundoff was tested with."""
    return None if OLDEST_TESTED <= torch_series() <= NEWEST_TESTED else str(torch.__version__)


def look_up(name: str) -> Any:
    """Return the object with a dotted name, importing the modules on the way."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
    return found


def _find(name: str, fallback: Any) -> Any:
    """Return the object with a private name, or what to use on a torch without it."""
    try:
        return look_up(name)
    except (AttributeError, ImportError):
        return fallback


def _nothing(*args: Any) -> None:
    return None


def _no(*args: Any) -> bool:
    return False


def _zero(*args: Any) -> int:
    return 0


if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_map_only as tree_map_only

    BatchNormBase = nn.modules.batchnorm._BatchNorm
else:
    OpOverload, OpOverloadPacket = type(torch.ops.aten.clone.default), type(torch.ops.aten.clone)
    BatchNormBase = _find("torch.nn.modules.batchnorm._BatchNorm", nn.BatchNorm1d)
    TorchDispatchMode = _find("torch.utils._python_dispatch.TorchDispatchMode", object)
    tree_flatten = _find("torch.utils._pytree.tree_flatten", None)
    tree_leaves = _find("torch.utils._pytree.tree_leaves", None)
    tree_map = _find("torch.utils._pytree.tree_map", None)
    tree_map_only = _find("torch.utils._pytree.tree_map_only", None)

LossBase: Any = _find("torch.nn.modules.loss._Loss", ())
"""The class of torch's losses, for `isinstance`."""

# Those that are called for every op or module are looked up here, once; none of them makes torch load anything.
_current_stack = _find("torch.utils._python_dispatch._get_current_dispatch_mode_stack", list)
_num_dispatch_modes = _find("torch._C._len_torch_dispatch_stack", lambda: len(_current_stack()))
_num_function_modes = _find("torch._C._len_torch_function_stack", _zero)
_pop_function_mode = _find("torch._C._pop_torch_function_stack", _nothing)
_push_function_mode = _find("torch._C._push_on_torch_function_stack", _nothing)
is_jit_tracing: Callable[[], bool] = _find("torch._C._is_tracing", _no)
"""Says whether `torch.jit.trace` is running: every op of this thread would become a part of what it traces."""
_transform_level = _find("torch._C._functorch.maybe_current_level", _nothing)
_is_wrapped_by_transform = _find("torch._C._functorch.is_functorch_wrapped_tensor", _no)
hidden_from_functions: Callable[[], contextlib.AbstractContextManager[None]] = _find(
    "torch._C.DisableTorchFunction", contextlib.nullcontext
)
"""Keeps the calls of a block from modes that see every call of a torch function; cheaper than from all modes."""
_functions_are_hidden = _find("torch._C._is_torch_function_all_disabled", lambda: False)
_has_kernel = _find("torch._C._dispatch_has_kernel_for_dispatch_key", _no)

_KEPT_GROUPS: set[int] = set()
_PARTS_OF_TRAINING: list[DispatchMode] = []

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


def next_sequence_number() -> Callable[[], int]:
    """Return the function that returns which number the next autograd node of this thread will get."""
    found: Callable[[], int] = _find("torch._C._autograd._get_sequence_nr", _zero)
    return found


sequence_number_of: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
"""Returns the number of an autograd node."""


def autograd_node() -> Callable[[], Any]:
    """Return the function that returns which autograd node is running backward now, or None."""
    found: Callable[[], Any] = _find("torch._C._current_autograd_node", _nothing)
    return found


def engine_module() -> tuple[Any, str]:
    """Return where `backward` and `grad` look up the call that starts the autograd engine."""
    return _place_of("torch.autograd", "_engine_run_backward")


def clip_module() -> tuple[Any, str]:
    """Return where `clip_grad_norm_` looks up the function that scales the gradients, however it was imported."""
    module = importlib.import_module("torch.nn.utils.clip_grad")
    has_private = hasattr(module, "_clip_grads_with_norm_")
    return module, "_clip_grads_with_norm_" if has_private else "clip_grads_with_norm_"


def clip_function() -> Callable[..., Any]:
    """Return what scales the gradients for `clip_grad_norm_`."""
    function: Callable[..., Any] = getattr(*clip_module())
    return function


def global_hooks_check() -> tuple[Any, str]:
    """Return where a compiled model looks up whether global hooks on modules are in place, to warn of them."""
    return _place_of("torch.nn.modules.module", "_has_any_global_hook")


@functools.cache
def _place_of(module: str, name: str) -> tuple[Any, str]:
    """Return where torch looks up a function of its own, so that it can be wrapped: nowhere, if it has none."""
    owner = importlib.import_module(module)
    return (owner if hasattr(owner, name) else SimpleNamespace(**{name: _nothing})), name


def global_module_hooks() -> list[dict[int, Any]]:
    """Return the tables of global hooks on modules, by the ids of their handles."""
    kinds = ("backward_pre", "backward", "forward_pre", "forward")
    return [getattr(torch.nn.modules.module, f"_global_{kind}_hooks", {}) for kind in kinds]


def push_mode(mode: DispatchMode, *, is_part_of_training: bool = False) -> None:
    """Make every op of this thread pass through `mode`, after the modes of others.

    Another mode's `with` block takes the topmost mode off when it ends, so ours goes to the bottom. A mode that is
    part of how the training computes is there in replays, too.
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
    others = [_pop_function_mode() for _ in range(_num_function_modes())]
    for entry in (mode, *reversed(others)):
        _push_function_mode(entry)


def remove_function_mode(mode: TorchFunctionMode) -> None:
    """Take `mode` off, also from below modes that were entered after it; nothing if it is not on."""
    others = [_pop_function_mode() for _ in range(_num_function_modes())]
    for entry in reversed(others):
        if entry is not mode:
            _push_function_mode(entry)


def preserved_versions(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Set the version counters of tensors back at the end of the block, as if they had not been written to."""
    preserve: Any = _find("torch.autograd.grad_mode._unsafe_preserve_version_counter", contextlib.nullcontext)
    found: contextlib.AbstractContextManager[None] = preserve(tuple(tensors))
    return found


def _others_on_stack() -> list[TorchDispatchMode]:
    """Return the modes of this thread, the topmost last, without those that torch itself works with."""
    return [mode for mode in _current_stack() if not _is_infra(mode)]


def _is_infra(mode: Any) -> bool:
    """Return whether torch itself works with a mode, in order to trace or compile."""
    return bool(getattr(mode, "is_infra_mode", _no)())


@contextlib.contextmanager
def _set_aside(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """Take the topmost modes off for the time of the block, without leaving and entering them: that would tell them."""
    for _ in modes:
        look_up("torch.utils._python_dispatch._pop_mode")()
    try:
        yield
    finally:
        for mode in modes:
            look_up("torch.utils._python_dispatch._push_mode")(mode)


def correct_mode_flags() -> None:
    """Tell torch which kinds of modes are on: it remembers that by the order in which they were entered."""
    stack = _current_stack()
    # a mode of a torch that does not ask for this is one that it takes into account
    is_seen = any(not getattr(mode, "ignore_compile_internals", _no)() for mode in stack)
    flags = {
        "_is_in_torch_dispatch_mode": bool(stack),
        "_is_in_non_infra_torch_dispatch_mode": any(not _is_infra(mode) for mode in stack),
        "_is_in_any_mode_without_ignore_compile_internals": is_seen,
    }
    module = sys.modules["torch.utils._python_dispatch"]
    for name, value in flags.items():
        if hasattr(module, name):  # torch looks at those that it has
            setattr(module, name, value)
    _find("torch._C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals", _nothing)(is_seen)


def correct_mode_keys() -> None:
    """Have torch look for modes again, after compiled code that ended has made it forget those entered inside."""
    keys = _find("torch._C.DispatchKey", None)
    is_included = _find("torch._C._dispatch_tls_is_dispatch_key_included", None)
    include = _find("torch._C._dispatch_tls_set_dispatch_key_included", None)
    if None in (keys, is_included, include) or not has_dispatch_modes() or is_included(keys.Python):
        return
    include(keys.Python, True)
    include(keys.PythonTLSSnapshot, True)


def has_dispatch_modes() -> bool:
    """Return whether a mode is on in this thread that sees every op."""
    return bool(_num_dispatch_modes())


def hidden_from_modes() -> contextlib.AbstractContextManager[None]:
    """Keep the ops of the block from every mode and transform that the user has entered, and from our mode."""
    if in_function_transform() or _num_dispatch_modes():
        return _hidden_from_all_modes()
    return hidden_from_functions()  # a tenth of the time, and this is called often


def is_hidden_from_modes() -> bool:
    """Return whether no mode and no transform sees what runs now, as inside `hidden_from_modes`."""
    return _functions_are_hidden() and is_hidden_from_dispatch()


def is_hidden_from_dispatch() -> bool:
    """Return whether no mode that sees ops and no transform is on; functions may be seen."""
    return not _num_dispatch_modes() and _transform_level() is None


@contextlib.contextmanager
def _hidden_from_all_modes() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(hidden_from_functions())
        if in_function_transform():
            stack.enter_context(_find("torch._C._DisableFuncTorch", contextlib.nullcontext)())
        if _num_dispatch_modes():
            disabled = _find("torch.utils._python_dispatch._disable_current_modes", contextlib.nullcontext)
            stack.enter_context(disabled())
        yield


@contextlib.contextmanager
def seen_as_in_training() -> Iterator[None]:
    """Let the block compute as the training does, inside a block that is hidden from modes.

    Modes that see functions are on again, and of those that see ops the ones that are part of how it computes.
    """
    missing = [mode for mode in _PARTS_OF_TRAINING if all(entry is not mode for entry in _others_on_stack())]
    with _find("torch._C._EnableTorchFunction", contextlib.nullcontext)(), contextlib.ExitStack() as stack:
        for mode in missing:
            push_mode(mode)
            stack.callback(_take_off, mode)
        yield


def has_function_modes() -> bool:
    """Return whether a mode is on that sees every call of a torch function, such as `with torch.device(...)`."""
    return bool(_num_function_modes())


def is_composite(func: Any) -> bool:
    """Return whether an operator only calls a few others; a kernel of its own would round in its own way."""
    try:
        return _has_kernel(func.name(), "CompositeImplicitAutograd") and not _has_kernel(func.name(), "CPU")
    except RuntimeError:  # an overload that only the schema parser knows
        return False


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """Return a function that computes what an operator does by other operators, if torch has one."""
    table: dict[Any, Callable[..., Any]] = _find("torch._decomp.decomposition_table", {})
    return table.get(op)


def one_by_one(op: Any) -> Callable[..., Any]:
    """Return the kernel of a `_foreach_` operator that goes from tensor to tensor."""
    run, keys = getattr(op, "_op_dk", None), _find("torch._C.DispatchKey", None)
    return op if run is None or keys is None else functools.partial(run, keys.CompositeExplicitAutograd)


def aten_op(name: str) -> Any:
    """Return an operator of aten by its name, `_foreach_mul.Scalar`, or None if this torch has none."""
    return _find(f"torch.ops.aten.{name}", None)


def is_only_mode() -> bool:
    """Return whether no other dispatch mode waits for the op that is passing through ours."""
    return all(isinstance(mode, DispatchMode) for mode in _current_stack())


def is_innermost(mode: DispatchMode) -> bool:
    """Return whether no other mode sees ops after this one; where all are hidden, none does."""
    return _others_on_stack()[:1] in ([], [mode])


def never_compiled(function: _Function) -> _Function:
    """Keep the compiler from looking at a function, and at what it calls, where it runs amid compiled code."""
    skipping = skip_by_compiler()
    if skipping is not None:
        skipping(function.__code__)
    vars(function)["_torchdynamo_disable"] = True  # where it is called from code that is being compiled
    vars(function)["_torchdynamo_disable_msg"] = "it belongs to roundoff"
    return function


@functools.cache
def skip_by_compiler() -> Callable[[Any], None] | None:
    """Return the function that has the compiler skip some code and what it calls; None if this torch has none."""
    try:
        eval_frame = look_up("torch._C._dynamo.eval_frame")
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        set_strategy = eval_frame.set_code_exec_strategy
    except (AttributeError, ImportError, TypeError):
        return None
    return lambda code: set_strategy(code, strategy)


def load_compiler() -> None:
    """Load the compiler, which torch's optimizers import when they are first used."""
    _find("torch._dynamo", None)


def compiler_is_loaded() -> bool:
    """Return whether anything can be compiled; the compiler is not loaded before it is needed."""
    return "torch._dynamo" in sys.modules


def has_compiled() -> bool:
    """Return whether anything was compiled so far in this process; if that is unknown, that it was."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames is not None and bool(getattr(frames, "FRAME_COUNTER", 1))


def in_compiled_code() -> bool:
    """Return whether a compiled function, or one that was to be compiled, is on this thread's stack."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    filename = str(dynamo.__file__)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    return frame is not None


def is_tracing() -> bool:
    """Return whether code runs only so that torch learns what it does: for `jit.trace`, `export` or a compiler."""
    if is_jit_tracing():
        return True
    return bool(_num_dispatch_modes()) and any(_is_infra(mode) for mode in _current_stack())


def is_eager() -> bool:
    """Return whether ops compute what they say: nothing traces or compiles them, and no torch.func transform runs."""
    return (
        _transform_level() is None
        and not is_jit_tracing()
        and not torch.compiler.is_compiling()
        and (not _num_dispatch_modes() or not is_tracing())
    )


def in_function_transform() -> bool:
    """Return whether a transform of torch.func (grad, vmap, ...) is running."""
    return _transform_level() is not None


def has_no_memory(x: torch.Tensor) -> bool:
    """Return whether a tensor of the plain class is one without memory of its own that could be read as it is."""
    is_strided = x.layout is torch.strided
    return not is_strided or x.is_nested or x.is_quantized or is_transformed(x) or x.data_ptr() == 0


def is_transformed(x: torch.Tensor) -> bool:
    """Return whether a tensor stands for others inside a transform of torch.func; its ops show the real ones."""
    return bool(_is_wrapped_by_transform(x))


def num_running_modules() -> int:
    """Count the module calls on this thread's stack."""
    return sum(1 for _ in _frames(_code_of_module_calls()))


def num_running_steps() -> int:
    """Count the optimizer steps on this thread's stack."""
    return sum(1 for _ in _frames(_code_of_steps()))


def calls_of_modules() -> Iterator[nn.Module]:
    """Yield the modules whose calls are on this thread's stack, the innermost first, also those without hooks."""
    for frame in _frames(code_of(getattr(nn.Module, "_call_impl", nn.Module.__call__))):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            yield module


@functools.cache
def _code_of_module_calls() -> CodeType | None:
    """Return the code that runs a module with its hooks: a function inside of `_call_impl`, or that one itself."""
    outer = code_of(getattr(nn.Module, "_call_impl", nn.Module.__call__))
    return _code_inside(outer, "inner") or outer


@functools.cache
def _code_of_steps() -> CodeType | None:
    """Return the code that torch wraps around the step of every optimizer, or None if it cannot be found."""
    return _code_inside(code_of(getattr(torch.optim.Optimizer, "profile_hook_step", None)), "wrapper")


def code_of(function: Any) -> CodeType | None:
    """Return the code of a Python function; None of anything else."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _code_inside(outer: CodeType | None, name: str) -> CodeType | None:
    codes = [code for code in (outer.co_consts if outer else ()) if isinstance(code, CodeType)]
    return next((code for code in codes if code.co_name == name), None)


def _frames(code: CodeType | None) -> Iterator[FrameType]:
    """Yield the frames of this thread's stack that run some code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back


def keyword_arguments() -> dict[str, Any]:
    """Return the keyword arguments of the module call whose pre-forward hook is running; global hooks get none."""
    frame = next(_frames(_code_of_module_calls()), None)
    kwargs = None if frame is None else frame.f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, dict) else {}


def scale_of(scaler: Any) -> torch.Tensor | None:
    """Return what a GradScaler multiplies the loss with, on its device; None if it is off."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None


def device_of_scaler(scaler: torch.amp.GradScaler) -> str:
    """Return the device that a GradScaler was made for, which its state dict does not hold."""
    return str(getattr(scaler, "_device", "cpu"))


def keep_group_of(args: Sequence[Any]) -> None:
    """Keep the process group of a collective for as long as this process lives."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":  # type: ignore[attr-defined]
            keep_process_group(torch.distributed.ProcessGroup.unbox(arg))


@contextlib.contextmanager
def separate_step_hooks() -> Iterator[None]:
    """Let global hooks of optimizers come and go inside the block while torch is going through them.

    A replay begins inside such a hook, and what observes it adds its own: torch would find its list changed and raise.
    """
    module = look_up("torch.optim.optimizer")
    own = getattr(module, "_global_optimizer_post_hooks", None)
    if own is None:
        yield
        return
    module._global_optimizer_post_hooks = own.copy()
    try:
        yield
    finally:
        module._global_optimizer_post_hooks = own


def process_group_of(func: Any, args: Sequence[Any]) -> Any:
    """Return the process group of an op that is a collective, or None for other ops."""
    if func.namespace == "c10d":
        for arg in args:
            if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":  # type: ignore[attr-defined]
                return torch.distributed.ProcessGroup.unbox(arg)
    elif func.namespace == "_c10d_functional" and args and isinstance(args[-1], str) and len(args) > 1:
        return look_up("torch.distributed.distributed_c10d._resolve_process_group")(args[-1])
    return None


def completed_work(func: Any, args: Sequence[Any]) -> Any:
    """Return what a collective of c10d returns, without communication: its tensors as they are."""
    create = look_up("torch._C._distributed_c10d._create_work_from_future")
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(args[0] if args else None)
    work = create(future).boxed()
    return (args[0], work) if len(func._schema.returns) > 1 else work


def keep_process_group(group: object) -> None:
    """Keep a process group for as long as this process lives, its end included.

    Freeing a group waits for its threads with Python's lock held. The tensors of a collective that passed through a
    dispatch mode have Python objects, so a gloo thread that gives one back needs that lock: without this, dropping
    the last reference (a DDP model that goes out of scope, Python as it clears its modules) could wait for ever.
    """
    if id(group) not in _KEPT_GROUPS:
        _KEPT_GROUPS.add(id(group))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def local_tensor(x: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor that this rank holds of a DTensor, or None for other tensor subclasses."""
    local = getattr(x, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else None


def mesh_placement(x: torch.Tensor) -> tuple[dict[str, int], tuple[int, ...], tuple[str, ...]] | None:
    """Return the mesh of a DTensor, this rank's place in it, and how the tensor lies on it; None for other tensors."""
    mesh, placements = getattr(x, "device_mesh", None), getattr(x, "placements", None)
    if mesh is None or placements is None or local_tensor(x) is None:
        return None
    names = mesh.mesh_dim_names or tuple(f"mesh{dim}" for dim in range(mesh.ndim))
    kinds = tuple(
        f"shard({placement.dim})"
        if placement.is_shard() and type(placement).__name__ == "Shard"
        else "replicate"
        if placement.is_replicate()
        else f"partial({getattr(placement, 'reduce_op', 'sum')})"
        if placement.is_partial()
        else str(placement)
        for placement in placements
    )
    coordinate = tuple(mesh.get_coordinate() or ())
    if not all(type(place) is int for place in coordinate):
        return None  # of all ranks at once, where one process simulates them
    return dict(zip(names, mesh.shape, strict=True)), coordinate, kinds


def simulated_ranks(x: torch.Tensor) -> Mapping[int, torch.Tensor] | None:
    """Return the tensors of all ranks that a LocalTensor simulates in this process, or None for other tensors."""
    inner: Any = x
    for _ in range(_MAX_WRAPPERS):
        found = getattr(inner, "_local_tensors", None)
        if isinstance(found, dict) and found:
            return found
        wrapped = getattr(inner, "_local_tensor", None)  # of a DTensor
        inner = getattr(inner, "elem", None) if wrapped is None else wrapped  # of a collective's result
        if not isinstance(inner, torch.Tensor):
            return None
    return None


_MAX_WRAPPERS = 4


def default_store() -> Any:
    """Return the key-value store that the ranks of the default process group share; raises if there is none."""
    return look_up("torch.distributed.distributed_c10d._get_default_store")()


def weight_norm_function() -> Callable[..., Any] | None:
    """Return what the old `torch.nn.utils.weight_norm` computes weights with."""
    found: Callable[..., Any] | None = _find("torch._weight_norm", None)
    return found


def foreach_norm(
    tensors: Sequence[torch.Tensor], order: float, *, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Return the norm of each tensor; one call for all, where torch has it and they are on one device."""
    together = _find("torch._foreach_norm", None)
    if together is None or len({x.device for x in tensors}) > 1:
        return [torch.linalg.vector_norm(x, order, dtype=dtype) for x in tensors]
    return list(together(tensors, order, dtype=dtype))


def foreach_copy_(into: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
    """Copy each tensor into its target; one call for all, where torch has it."""
    together = _find("torch._foreach_copy_", None)
    if together is not None:
        together(into, of)
        return
    for target, source in zip(into, of, strict=True):
        target.copy_(source)


def foreach_mul_(tensors: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply each tensor in place; one call for all, where torch has it."""
    together = _find("torch._foreach_mul_", None)
    if together is not None:
        together(tensors, factor)
        return
    for x in tensors:
        x.mul_(factor)


def sparse_values(x: torch.Tensor) -> torch.Tensor:
    """Return the values that a sparse tensor holds, also where several are for one place."""
    values: torch.Tensor = x._values() if hasattr(x, "_values") else x.coalesce().values()
    return values


def is_zero_tensor(x: torch.Tensor) -> bool:
    """Return whether a tensor is one without memory, which stands for zeros in forward-mode differentiation."""
    return bool(getattr(x, "_is_zerotensor", _no)())


def version_of(x: torch.Tensor) -> int:
    """Return the version of a tensor, which every write increments; -1 for an inference tensor, which has none."""
    return -1 if x.is_inference() else x._version


def storage_of(x: torch.Tensor) -> int:
    """Return a number that identifies the memory of a tensor, for as long as it lives."""
    storage = x.untyped_storage()
    return int(storage._cdata if hasattr(storage, "_cdata") else storage.data_ptr())


def mark_as_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Keep torch's schedulers from warning that an optimizer whose first step was skipped was never called."""
    vars(optimizer)["_opt_called"] = True


def is_initial_step(scheduler: Any) -> bool:
    """Return whether a scheduler is making the first step, with which it is constructed."""
    return bool(getattr(scheduler, "_is_initial", False))


def forward_class(node: Any) -> Any:
    """Return the user's `autograd.Function` whose backward a node runs."""
    return getattr(node, "_forward_cls", type(node))


def is_synchronized_by_ddp(model: nn.Module) -> bool:
    """Return whether DistributedDataParallel is running this model as its own, with all ranks taking part."""
    ddp = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    joining = getattr(ddp, "_join_config", None)
    return ddp is not None and ddp.module is model and not (joining is not None and joining.enable)


FLAT_WEIGHTS = "_flat_weights"
"""The attribute in which an RNN keeps the list of the weights that it computes with."""


def flat_weights(module: nn.RNNBase) -> list[Any] | None:
    """Return the weights that an RNN should compute with, by their present values; None if it keeps no such list."""
    names = getattr(module, "_flat_weights_names", None)
    return None if names is None or not hasattr(module, FLAT_WEIGHTS) else [getattr(module, name) for name in names]
