"""The form of a saved step in JSON: `step_inputs` writes it, `tape_reader` and `saved_step` read it.

These types describe what we write. What is read may come from any file: `read_saved_tape` checks its fields, and
`TapeReader` the rest.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, final

from roundoff.runs import JsonValue

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
