"""A recipe: how a model trains, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from roundoff.errors import FormatError, RecipeError
from roundoff.formats import format_named
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
    """The formats of what goes into every matrix product and convolution; their sums are wide."""

    forward: str = "e4m3"
    """Format of inputs and weights."""
    backward: str = "e5m2"
    """Format of the gradient that comes back."""
    scaling: OperandScaling = "current"
    """Per-tensor scale from the tensor's own largest magnitude, from those of earlier steps, or none."""
    amax_history: int = 16
    """How many earlier steps `delayed` looks at."""
    backward_rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        _check_format("operands.forward", self.forward)
        _check_format("operands.backward", self.backward)
        _check_choice("operands.scaling", self.scaling, get_args(OperandScaling))
        _check_choice("operands.backward_rounding", self.backward_rounding, ("nearest", "stochastic"))
        if self.amax_history < 1:
            raise wrong_value("operands.amax_history", self.amax_history, "any whole number from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Which tensor takes which format, how the loss is scaled, and which sites are exceptions.

    `compute` says how the formats are reached: `plain` (not at all), `cast` (the whole model), `lists` (op by op, as
    apex O1), `autocast` (torch's own), `operands` (matrix products and convolutions round what goes in) or `fixed`
    (fixed point). Formats are names, as in `roundoff formats`. The value can be compared, copied, pickled and written
    as TOML.
    """

    name: str
    description: str = ""
    """What it does and when to use it, in one line."""
    compute: Compute = "plain"
    compute_format: str = "fp32"
    weights: str = "fp32"
    norms: str = "fp32"
    """Format of norm layers: their parameters, their buffers and what they compute."""
    inputs: str = "keep"
    """Format that float inputs of the model are cast to, or `keep`."""
    outputs: str = "keep"
    """Format that float outputs of the model are cast to, or `keep`."""
    master_weights: bool = False
    update: UpdateRounding = "nearest"
    """How an updated weight is rounded to `weights` when there are no master weights."""
    loss_scale: ScaleSettings = field(default_factory=ScaleSettings)
    operands: OperandSettings = field(default_factory=OperandSettings)
    fixed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of `fixed`, as `FixedPointSettings.from_dict` takes them, and `norms`: "float" or "quantized"."""
    activation_bits: int = 0
    """Bits of the activations saved for the backward pass: 2, 4, 8, or 0 to leave them alone."""
    activation_sites: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Bits of what single sites save, by pattern: `{"blocks.*.attn": 8}`; 32 leaves it alone. The last one counts."""
    arithmetic: Arithmetic = "auto"
    device_profile: DeviceProfile = ""
    overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Formats of single sites, by pattern: `{"blocks.*.attn": "fp32"}`. The last pattern that matches counts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", dict(self.overrides))
        object.__setattr__(self, "fixed", dict(self.fixed))
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
        if self.fixed:
            self._check_fixed()
        self._check_combination()

    def _check_fixed(self) -> None:
        # Here, because that room's settings need this module's neighbours.
        from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings

        FixedPointSettings.from_dict({key: value for key, value in self.fixed.items() if key != "norms"})
        _check_choice("fixed.norms", self.fixed.get("norms", "float"), ("float", "quantized"))

    @property
    def narrow_weights(self) -> bool:
        """Whether the model's weights hold fewer bits than fp32."""
        return self.weights != "fp32"

    @property
    def least_activation_bits(self) -> int:
        """The fewest bits in which an activation is saved for the backward pass; 0 if all are left alone."""
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
                self.name, f"update = '{self.update}'", "it is for narrow weights that have no fp32 master weights"
            )
        if self.arithmetic == "native" and self.compute in ("operands", "fixed"):
            raise _invalid_recipe(self.name, "arithmetic = 'native'", f"'{self.compute}' is emulated on every device")


def wrong_value(key: str, value: object, allowed: str) -> RecipeError:
    """Return the error for a setting outside its allowed values."""
    return RecipeError.explain(f"Recipe setting {key} = {value!r} cannot be.", why=f"allowed: {allowed}.")


def _check_choice(key: str, value: object, allowed: tuple[object, ...]) -> None:
    # A list or a dict from a file is no choice either, and cannot be hashed.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise wrong_value(key, value, ", ".join(repr(choice) for choice in allowed))


def _check_format(key: str, name: object) -> None:
    if not isinstance(name, str):
        raise wrong_value(key, name, "the name of a format, such as 'fp16' (roundoff formats)")
    try:
        format_named(name)
    except FormatError as error:
        raise RecipeError(f"Recipe setting {key} = {name!r} cannot be: {error}") from error


def _invalid_recipe(name: str, what: str, why: str) -> RecipeError:
    return RecipeError.explain(f"Recipe '{name}' cannot have {what}.", why=f"{why}.")
