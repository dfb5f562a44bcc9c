"""A recipe: how a model trains, as one frozen value, with the settings of its loss scale and operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from roundoff.errors import FormatError, RecipeError
from roundoff.formats import format_named
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings

ScaleKind = Literal["none", "static", "dynamic"]
Compute = Literal["plain", "cast", "lists", "autocast", "operands", "fixed"]
UpdateRounding = Literal["nearest", "stochastic", "kahan"]
Arithmetic = Literal["auto", "native", "emulated"]
OperandScaling = Literal["none", "current", "delayed"]
Role = Literal["router", "head"]
SavedWeights = Literal["exact", "narrow"]
DeviceProfile = Literal["", "ascend-fp16"]
OptimizerState = Literal["adam8", "adam4", "adamfp8", "muon8"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
ACTIVATION_BITS = (0, 2, 4, 8)
UNCOMPRESSED_BITS = 32
SITE_ACTIVATION_BITS = (2, 4, 8, UNCOMPRESSED_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """How the loss is scaled.

    - `dynamic` starts at `initial`. After `interval` steps without overflow the scale is multiplied by `growth`, up to
      `largest`; on an overflow the step is skipped and the scale multiplied by `backoff`, down to `smallest`.
    - `static` keeps `initial`, and skips overflowing steps only with `drop_overflow_update`.
    - `none` scales nothing and checks nothing.

    `max_skips` skipped steps in a row raise an error that names the gradient; 0 means no limit.
    """

    kind: ScaleKind = "none"
    flavour: str = ""
    initial: float = 1.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    smallest: float = 0.0
    largest: float = float(2**126)
    max_skips: int = 0
    drop_overflow_update: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScaleKind):
            raise _invalid_setting("kind", self.kind, ", ".join(get_args(ScaleKind)))
        for name in ("initial", "growth", "backoff"):
            if not getattr(self, name) > 0:
                raise _invalid_setting(name, getattr(self, name), "a number above 0")
        if self.interval < 1:
            raise _invalid_setting("interval", self.interval, "an integer of at least 1")
        if self.max_skips < 0:
            raise _invalid_setting("max_skips", self.max_skips, "0 for no limit, or a number of steps")
        if not 0 <= self.smallest <= self.initial <= self.largest:
            raise _invalid_setting(
                "initial", self.initial, f"{self.smallest:g} (smallest) to {self.largest:g} (largest)"
            )

    @property
    def may_skip(self) -> bool:
        """Whether gradients are checked, and steps with a non-finite one skipped."""
        return self.kind == "dynamic" or (self.kind == "static" and self.drop_overflow_update)


def _invalid_setting(name: str, value: object, allowed: str) -> RecipeError:
    return RecipeError.explain(f"Loss scale setting {name} = {value!r} is invalid.", why=f"allowed: {allowed}.")


FLAVOURS: Final = {
    flavour.flavour: flavour
    for flavour in (
        ScaleSettings(kind="dynamic", flavour="apex", initial=2.0**16, largest=2.0**24, max_skips=200),
        ScaleSettings(kind="dynamic", flavour="torch", initial=2.0**16, max_skips=200),
        ScaleSettings(kind="dynamic", flavour="mindspore", initial=2.0**24, smallest=1.0, max_skips=1000),
        ScaleSettings(
            kind="dynamic", flavour="fp16_optimizer", initial=2.0**32, interval=1000, smallest=1.0, max_skips=1000
        ),
    )
}
"""The default dynamic scalers of apex, torch, MindSpore and FP16_Optimizer."""

DYNAMIC: Final = FLAVOURS["apex"]
NONE: Final = ScaleSettings()


def scale_settings(loss_scale: str | float | ScaleSettings) -> ScaleSettings:
    """Return the settings that a short form stands for.

    `"dynamic"` and 0 mean apex's scaler, `"dynamic:torch"` another flavour, a positive number a static scale that
    skips overflowing steps, `"static:1024"` a static scale without checks, and `"none"` no scaling.

    >>> scale_settings("dynamic:mindspore").initial
    16777216.0
    >>> scale_settings(128).kind
    'static'
    """
    if isinstance(loss_scale, ScaleSettings):
        return loss_scale
    text = str(loss_scale)
    if text == "none":
        return NONE
    if text == "dynamic":
        return DYNAMIC
    kind, _, rest = text.partition(":")
    if kind == "dynamic" and rest in FLAVOURS:
        return FLAVOURS[rest]
    number = _number(rest if kind == "static" else text)
    if number == 0 and kind != "static":
        return DYNAMIC
    if number is None or not 0 < number < float("inf"):
        raise RecipeError.explain(
            f"Invalid loss scale '{loss_scale}'.",
            why=f"allowed: none, dynamic, {', '.join(f'dynamic:{name}' for name in FLAVOURS)}, 0 (dynamic), a positive "
            "number (static, overflowing steps are skipped), static:NUMBER (never checked).",
            fix='use "dynamic" if unsure.',
        )
    return replace(NONE, kind="static", initial=number, drop_overflow_update=kind != "static")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSettings:
    """The formats of the operands of every matrix product and convolution; the sums stay wide."""

    forward: str = "e4m3"
    """Format of inputs, and of weights unless `weight` says otherwise."""
    weight: str = ""
    """Format of weights; empty for `forward`."""
    backward: str = "e5m2"
    """Format of the incoming gradient."""
    weight_gradient: str = ""
    """Format of both operands of a linear layer's weight gradient, in blocks along the batch; empty for those rounded
    for the other products. `fp32` keeps this product wide."""
    scaling: OperandScaling = "current"
    """Where the per-tensor scale comes from: the tensor's own largest magnitude, those of earlier steps, or nowhere."""
    amax_history: int = 16
    """How many earlier steps `delayed` uses."""
    backward_rounding: Literal["nearest", "stochastic"] = "nearest"
    hadamard: bool = False
    """Whether the operands of a linear layer's weight gradient are first mixed, 16 samples at a time, by a Hadamard
    matrix with random signs, the same on all ranks: outliers are spread, and the product stays the same."""
    layers_only: bool = False
    """Whether only products with a weight are rounded, so that those inside attention stay fp32."""
    wide_share: float = 0.0
    """Share of the layers that is kept in bf16: the last ones."""

    def __post_init__(self) -> None:
        _check_format("operands.forward", self.forward)
        _check_format("operands.backward", self.backward)
        for name in ("weight", "weight_gradient"):
            if getattr(self, name) != "":
                _check_format(f"operands.{name}", getattr(self, name))
        if self.hadamard and not self.weight_gradient:
            raise invalid_value("operands.hadamard", True, "False without operands.weight_gradient")
        if not 0.0 <= self.wide_share <= 1.0:
            raise invalid_value("operands.wide_share", self.wide_share, "a number from 0 to 1")
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
    optimizer_states: tuple[OptimizerState, ...] = ()
    """Formats in which the optimizers keep their state: one of adam8, adam4, adamfp8, and muon8 for Muon and SGD."""
    wide: tuple[Role, ...] = ()
    """Layers that stay in fp32 because of what they do: `router` (of experts), `head`. Overrides win over it."""
    saved: SavedWeights = "exact"
    """Type of narrow weights and buffers in `state_dict`: as exact as they are known, so fp32 with master weights and
    under emulation, or the narrow type, which is what a model cast by `model.half()` writes."""
    arithmetic: Arithmetic = "auto"
    device_profile: DeviceProfile = ""
    overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Formats of single sites, by pattern: `{"blocks.*.attn": "fp32"}`. The last match wins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", dict(self.overrides))
        object.__setattr__(self, "activation_sites", dict(self.activation_sites))
        _check_choice("compute", self.compute, get_args(Compute))
        _check_choice("update", self.update, get_args(UpdateRounding))
        for name, choices in (("wide", ROLES), ("optimizer_states", get_args(OptimizerState))):
            if not isinstance(getattr(self, name), list | tuple):
                raise invalid_value(name, getattr(self, name), f"a list of {', '.join(choices)}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for each in getattr(self, name):
                _check_choice(name, each, choices)
        _check_choice("saved", self.saved, get_args(SavedWeights))
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
        if len([name for name in self.optimizer_states if name != "muon8"]) > 1:
            raise _invalid_recipe(
                self.name,
                f"optimizer_states = {list(self.optimizer_states)}",
                "an optimizer has one format for its state",
            )
        if self.arithmetic == "native" and self.compute in ("operands", "fixed"):
            why = f"'{self.compute}' is native only for recipes and devices that 'auto' finds kernels for"
            raise _invalid_recipe(self.name, "arithmetic = 'native'", why)


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
