"""The fixed-point setting of one tensor: bits, scale and rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from roundoff.errors import RecipeError
from roundoff.kernels.rounding_rules import FixedRule, Range

Method = Literal["none", "auto", "fixed"]
"""`none` does not quantize; `auto` takes the scale from the data in training and keeps it in eval; `fixed` uses the
stored scale."""
Granularity = Literal["tensor", "channel", "batch"]
"""How many scales there are: one for the whole tensor, one for each channel, or one for each sample of the batch."""
FixedRounding = Literal["nearest", "stochastic"]
FixedCompat = Literal["nics"]

METHODS: Final[tuple[Method, ...]] = get_args(Method)
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "method": METHODS,
    "range": get_args(Range),
    "rounding": get_args(FixedRounding),
    "granularity": get_args(Granularity),
    "compat": (None, "nics"),
}
_LARGEST_SCALE: Final = 2.0**100


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSetting:
    """Bits, scale and rounding of one tensor.

    The step is 2 * scale / 2**bits. Codes are two's complement: from -scale to scale - step. `compat="nics"` selects
    the quantizer of nics_fix_pt, which also reaches +scale and so has one more code than its bits can represent. With
    `float_scale` the scale is the range itself instead of the power of two that covers it. `scale` is the initial
    stored scale; `percentile` is the percentage of elements that the range `percentile` covers.

    >>> TensorSetting(bits=4, range="sweep").step_of(1.0)
    0.125
    """

    bits: int = 8
    method: Method = "auto"
    range: Range = "max"
    float_scale: bool = False
    rounding: FixedRounding = "nearest"
    granularity: Granularity = "tensor"
    scale: float | None = None
    compat: FixedCompat | None = None
    percentile: float = 99.9

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _invalid_setting(name, getattr(self, name), f"allowed: {', '.join(map(str, choices))}.")
        if type(self.bits) is not int or not 1 <= self.bits <= 24:
            raise _invalid_setting("bits", self.bits, "allowed: 1 to 24, the integers that fp32 holds exactly.")
        if type(self.float_scale) is not bool:
            raise _invalid_setting("float_scale", self.float_scale, "allowed: true, false.")
        if self.scale is not None and not _is_number(self.scale, 1 / _LARGEST_SCALE, _LARGEST_SCALE):
            raise _invalid_setting("scale", self.scale, "it must be a number between 2**-100 and 2**100.")
        if not _is_number(self.percentile, 0.0, 100.0):
            raise _invalid_setting("percentile", self.percentile, "it must be a number between 0 and 100.")

    @property
    def rule(self) -> FixedRule:
        """The part of the setting that the kernels take."""
        return FixedRule(
            num_bits=self.bits,
            nics=self.compat == "nics",
            range=self.range,
            float_scale=self.float_scale,
            percentile=self.percentile,
        )

    def step_of(self, scale: float) -> float:
        """Return the distance between neighbouring numbers under `scale`."""
        return 2.0 * scale / 2.0**self.bits

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; None becomes `"none"`, because TOML has no null."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: "none" if value is None else value for name, value in values.items()}


def with_fields(setting: TensorSetting, values: Any, *, where: str) -> TensorSetting:
    """Return `setting` with the fields in the table `values` replaced.

    Raises:
        RecipeError: `values` is not a table, or has an unknown field.
    """
    if isinstance(values, TensorSetting):
        return values
    names = [field.name for field in fields(TensorSetting)]
    if not isinstance(values, dict):
        raise RecipeError.explain(
            f"The fixed-point setting {where} = {values!r} is invalid.",
            why=f"it must be a table of {', '.join(names)}.",
            fix=f"for example {where} = {{bits = 8}}.",
        )
    for name in values:
        if name not in names:
            raise RecipeError.explain(
                f"The fixed-point setting {where} has no field '{name}'.",
                why=f"known fields are {', '.join(names)}.",
            )
    none = {name: None for name in ("scale", "compat") if values.get(name) == "none"}
    return replace(setting, **{**values, **none})


def _is_number(value: object, lowest: float, highest: float) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value) and lowest <= value <= highest  # type: ignore[arg-type, operator]


def _invalid_setting(name: str, value: object, why: str) -> RecipeError:
    return RecipeError.explain(
        f"The fixed-point field {name} = {value!r} is invalid.", why=why, fix="see docs/fixed-point.md"
    )
