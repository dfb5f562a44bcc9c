"""A recipe: how a model trains, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from roundoff.errors import FormatError, RecipeError
from roundoff.formats import format_named
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings
from roundoff.precision.recipe.loss_scale_settings import ScaleSettings

Compute = Literal["plain", "cast", "lists", "autocast", "operands", "fixed"]
UpdateRounding = Literal["nearest", "stochastic", "kahan"]
Arithmetic = Literal["auto", "native", "emulated"]
OperandScaling = Literal["none", "current", "delayed"]
DeviceProfile = Literal["", "ascend-fp16"]

ACTIVATION_BITS = (0, 2, 4, 8)
UNCOMPRESSED_BITS = 32
SITE_ACTIVATION_BITS = (2, 4, 8, UNCOMPRESSED_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSettings:
    """The formats of the operands of every matrix product and convolution; the sums stay wide."""

    forward: str = "e4m3"
    """Format of inputs and weights."""
    backward: str = "e5m2"
    """Format of the incoming gradient."""
    scaling: OperandScaling = "current"
    """Where the per-tensor scale comes from: the tensor's own largest magnitude, those of earlier steps, or nowhere."""
    amax_history: int = 16
    """How many earlier steps `delayed` uses."""
    backward_rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        _check_format("operands.forward", self.forward)
        _check_format("operands.backward", self.backward)
        _check_choice("operands.scaling", self.scaling, get_args(OperandScaling))
        _check_choice("operands.backward_rounding", self.backward_rounding, ("nearest", "stochastic"))
        if self.amax_history < 1:
            raise invalid_value("operands.amax_history", self.amax_history, "an integer of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Which tensor takes which format, how the loss is scaled, and which sites are exceptions.

    `compute` says how the formats are applied: `plain` (not at all), `cast` (to the whole model), `lists` (op by op, as
    apex O1 does), `autocast` (by torch), `operands` (to the operands of matrix products and convolutions) or `fixed`
    (fixed point). Formats are names that `roundoff formats` lists.
    """

    name: str
    description: str = ""
    """What it does and when to use it, on one line."""
    compute: Compute = "plain"
    compute_format: str = "fp32"
    weights: str = "fp32"
    norms: str = "fp32"
    """Format of norm layers: parameters, buffers and arithmetic."""
    inputs: str = "keep"
    """Format that float inputs of the model are cast to, or `keep`."""
    outputs: str = "keep"
    """Format that float outputs of the model are cast to, or `keep`."""
    master_weights: bool = False
    update: UpdateRounding = "nearest"
    """How an updated weight is rounded to `weights` when there are no master weights."""
    loss_scale: ScaleSettings = field(default_factory=ScaleSettings)
    operands: OperandSettings = field(default_factory=OperandSettings)
    fixed: FixedPointSettings = field(default_factory=FixedPointSettings, hash=False)
    """Settings of `compute = "fixed"`."""
    activation_bits: int = 0
    """Bits of the activations saved for the backward pass: 2, 4, 8, or 0 for no compression."""
    activation_sites: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Bits for single sites, by pattern: `{"blocks.*.attn": 8}`; 32 means no compression. The last match wins."""
    arithmetic: Arithmetic = "auto"
    device_profile: DeviceProfile = ""
    overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Formats of single sites, by pattern: `{"blocks.*.attn": "fp32"}`. The last match wins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", dict(self.overrides))
        object.__setattr__(self, "activation_sites", dict(self.activation_sites))
        _check_choice("compute", self.compute, get_args(Compute))
        _check_choice("update", self.update, get_args(UpdateRounding))
        _check_choice("arithmetic", self.arithmetic, get_args(Arithmetic))
        _check_choice("device_profile", self.device_profile, get_args(DeviceProfile))
        _check_choice("activation_bits", self.activation_bits, ACTIVATION_BITS)
        for pattern, bits in self.activation_sites.items():
            _check_choice(f'activation_sites."{pattern}"', bits, SITE_ACTIVATION_BITS)
        for name in ("compute_format", "weights", "norms"):
            _check_format(name, getattr(self, name))
        for name in ("inputs", "outputs"):
            if getattr(self, name) != "keep":
                _check_format(name, getattr(self, name))
        for pattern, fmt in self.overrides.items():
            _check_format(f'overrides."{pattern}"', fmt)
        self._check_combination()

    @property
    def narrow_weights(self) -> bool:
        """Whether the model's weights hold fewer bits than fp32."""
        return self.weights != "fp32"

    @property
    def least_activation_bits(self) -> int:
        """The fewest bits that any saved activation has; 0 if none is compressed."""
        bits = [self.activation_bits, *self.activation_sites.values()]
        return min((each for each in bits if each not in (0, UNCOMPRESSED_BITS)), default=0)

    def _check_combination(self) -> None:
        if self.compute != "cast" and self.narrow_weights:
            raise _invalid_recipe(
                self.name, f"weights in {self.weights}", f"compute = '{self.compute}' keeps them in fp32"
            )
        if self.compute == "cast" and self.weights != self.compute_format:
            raise _invalid_recipe(
                self.name,
                f"weights in {self.weights} and compute_format in {self.compute_format}",
                "compute = 'cast' has one format for both",
            )
        if self.update != "nearest" and (self.master_weights or not self.narrow_weights):
            raise _invalid_recipe(
                self.name, f"update = '{self.update}'", "it only applies to narrow weights without fp32 master weights"
            )
        if self.arithmetic == "native" and self.compute in ("operands", "fixed"):
            raise _invalid_recipe(self.name, "arithmetic = 'native'", f"'{self.compute}' is emulated on every device")


def invalid_value(key: str, value: object, allowed: str) -> RecipeError:
    """Return the error for a setting outside its allowed values."""
    return RecipeError.explain(f"Recipe setting {key} = {value!r} is invalid.", why=f"allowed: {allowed}.")


def _check_choice(key: str, value: object, allowed: tuple[object, ...]) -> None:
    # Compared one by one: a list or a dict from a file cannot be hashed, and True == 1.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise invalid_value(key, value, ", ".join(repr(choice) for choice in allowed))


def _check_format(key: str, name: object) -> None:
    if not isinstance(name, str):
        raise invalid_value(key, name, "the name of a format, such as 'fp16' (`roundoff formats` lists them)")
    try:
        format_named(name)
    except FormatError as error:
        raise RecipeError(f"Recipe setting {key} = {name!r} is invalid: {error}") from error


def _invalid_recipe(name: str, what: str, why: str) -> RecipeError:
    return RecipeError.explain(f"Recipe '{name}' cannot have {what}.", why=f"{why}.")
