"""The form of a saved step in JSON: `step_inputs` writes it, `tape_reader` and `saved_step` read it.

These types describe what we write. What is read may come from any file: `read_saved_tape` checks its fields, and
`TapeReader` the rest.
Torch functions are named by a closed table, since names may come from untrusted files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, final

import torch
from torch import overrides

from roundoff.runs import JsonValue
from roundoff.torch_private import weight_norm_function

SavedLine: TypeAlias = tuple[str, int] | None
"""File and line of the user's code that made the call."""


class SavedAmbient(TypedDict):
    """Whether gradients and autocast were on; autocast as (device, is on, dtype)."""

    gradients: bool
    autocast: list[tuple[str, bool, str]]


@final
class SavedModelCall(TypedDict):
    """A call of a model; the state of torch's generator before it is in the batch file."""

    call: Literal["model"]
    module: JsonValue
    args: JsonValue
    kwargs: JsonValue
    ambient: SavedAmbient
    is_training: bool
    num_results: int


@final
class SavedFunctionCall(TypedDict):
    """A call of a torch function, by its name in `torch_functions`."""

    call: Literal["function"]
    name: str
    args: JsonValue
    kwargs: JsonValue
    ambient: SavedAmbient
    line: SavedLine
    num_results: int


@final
class SavedBackward(TypedDict):
    """A backward; the loss as (dtype, value)."""

    call: Literal["backward"]
    roots: JsonValue
    args: JsonValue
    line: SavedLine
    loss: tuple[str, float] | None


@final
class SavedOptimizerStep(TypedDict):
    """A step of an optimizer, by its number; settings by parameter group."""

    call: Literal["step"]
    optimizer: int
    line: SavedLine
    settings: list[dict[str, JsonValue]]
    closures: list[list[SavedCall]]


@final
class SavedZeroGrad(TypedDict):
    """A call of `zero_grad` of a module or optimizer."""

    call: Literal["zero_grad"]
    of: JsonValue
    args: JsonValue
    kwargs: JsonValue
    line: SavedLine


@final
class SavedClipping(TypedDict):
    """A call that clips gradients."""

    call: Literal["clip_grads_with_norm", "clip_grad_value"]
    args: JsonValue
    kwargs: JsonValue
    line: SavedLine


@final
class SavedScalerCall(TypedDict):
    """A call of a GradScaler, by its number; `scale` is a function call like any other."""

    call: Literal["scaler.unscale_", "scaler.step", "scaler.update"]
    scaler: int
    args: JsonValue
    kwargs: JsonValue
    line: SavedLine


SavedCall: TypeAlias = (
    SavedModelCall
    | SavedFunctionCall
    | SavedBackward
    | SavedOptimizerStep
    | SavedZeroGrad
    | SavedClipping
    | SavedScalerCall
)


class SavedExternalTensor(TypedDict):
    """What the batch file does not say about an external tensor."""

    requires_grad: bool
    stride: list[int]
    in_batch: bool
    """Whether a model or function used it, as opposed to backward or clipping."""
    device: NotRequired[str]
    """Where it was; older versions did not say."""


SavedModel = TypedDict(
    "SavedModel", {"class": str, "attributes": dict[str, JsonValue] | None, "buffers": NotRequired[list[str]]}
)
"""A model by its class; `attributes` are those of a torch.nn module without parameters, such as a loss."""


class SavedGenerators(TypedDict):
    """What is not a tensor in the states of numpy's and Python's generators."""

    numpy: list[Any]
    python: list[Any]


class SavedState(TypedDict):
    """What the state file does not say about the state before the step."""

    models: list[SavedModel]
    optimizers: list[str]
    optimizer_values: dict[str, JsonValue]
    scalers: list[dict[str, Any]]
    generators: SavedGenerators
    in_eval: list[tuple[int, str]]
    """Number of the model and path of each module in eval mode."""


class SavedTape(SavedState):
    """A whole step."""

    step: int
    outside: list[SavedExternalTensor]
    calls: list[SavedCall]
    untold: str | None
    """Why `calls` is empty, if a call could not be written as JSON."""


_MAKERS = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "logspace", "multinomial",
    "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
"""Functions that create tensors, which torch does not list among those that can be overridden."""


_ATTRIBUTES = frozenset({"H", "T", "data", "grad", "imag", "mH", "mT", "real"})
_BINARY = (
    "add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor"
)  # fmt: skip
_OPERATORS = frozenset(
    {f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _BINARY}
    | {f"__{name}__" for name in ["eq", "ge", "getitem", "gt", "invert", "le", "lt", "ne", "reversed", "setitem"]}
)
_OTHER_WORK = frozenset({
    "apply_", "backward", "const_data_ptr", "data_ptr", "from_file", "is_pinned", "is_shared", "map2_", "map_",
    "module_load", "numpy", "pin_memory", "register_hook", "register_post_accumulate_grad_hook", "resize", "resize_",
    "resize_as", "resize_as_", "resize_as_sparse_", "set_", "share_memory_", "sparse_resize_",
    "sparse_resize_and_clear_", "storage", "storage_type", "tolist", "untyped_storage",
})  # fmt: skip
"""Functions that call what they are given, or get at memory or other processes: no step is made of them."""


def _computes(name: str) -> bool:
    """Return whether a function only computes tensors from tensors; of special methods, only operators do."""
    *_, owner, last = name.split(".")
    if last == "__get__":
        return owner in _ATTRIBUTES
    return last in _OPERATORS or not (last.startswith("__") or last in _OTHER_WORK)


def name_of_function(function: Callable[..., Any]) -> str | None:
    """Return the name under which `function_named` finds a function; None if it does not.

    >>> name_of_function(torch.nn.functional.cross_entropy)
    'torch.nn.functional.cross_entropy'
    """
    return _names().get(function)


def function_named(name: str) -> Callable[..., Any] | None:
    """Return the torch function with that name; None if there is none that computes a tensor of a step.

    The name may come from an untrusted file: no other function can be reached through it.
    """
    return _functions().get(name)


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    found = {f"torch.{name}": getattr(torch, name) for name in _MAKERS}
    for functions in overrides.get_overridable_functions().values():
        for function in functions:
            name = overrides.resolve_name(function)
            if name is not None and _computes(name):
                found[name] = function
    found["torch.autograd.grad"] = torch.autograd.grad
    if (weight_norm := weight_norm_function()) is not None:
        found["torch._weight_norm"] = weight_norm
    for name in ("grad", "data"):
        found[f"torch.Tensor.{name}.__set__"] = getattr(torch.Tensor, name).__set__
    return found


@functools.cache
def _names() -> dict[Callable[..., Any], str]:
    return {function: name for name, function in _functions().items()}
