"""How one tensor is kept in fixed point."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from roundoff.errors import RecipeError
from roundoff.kernels.rounding_rules import FixedRule, Range

Method = Literal["none", "auto", "fixed"]
"""`none` leaves the tensor alone; `auto` takes the scale from the data while training and keeps it in eval; `fixed`
uses the stored scale."""
Granularity = Literal["tensor", "channel", "batch"]
"""What has a scale of its own: the whole tensor, each channel, or each sample of the batch."""
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

    The step is 2 * scale / 2**bits. Codes are two's complement: from -scale to scale - step. `compat="nics"` is the
    quantizer of nics_fix_pt, which also reaches scale and so has one code more than its bits can count. `float_scale`
    takes the range itself as the scale instead of the power of two that covers it. `scale` is the stored scale to begin
    with; `percentile` is the share of elements, in percent, that the range of that name covers.

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
            raise _invalid_setting("bits", self.bits, "codes are computed in fp32, which counts to 24 bits: 1 to 24.")
        if type(self.float_scale) is not bool:
            raise _invalid_setting("float_scale", self.float_scale, "allowed: true, false.")
        if self.scale is not None and not _is_number(self.scale, 1 / _LARGEST_SCALE, _LARGEST_SCALE):
            raise _invalid_setting("scale", self.scale, "a scale is a number between 2**-100 and 2**100.")
        if not _is_number(self.percentile, 0.0, 100.0):
            raise _invalid_setting("percentile", self.percentile, "it is a number between 0 and 100.")

    @property
    def rule(self) -> FixedRule:
        """The part of the setting that the kernels need."""
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
        """Return the fields as plain values; None is written `"none"`, since TOML has no word for it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: "none" if value is None else value for name, value in values.items()}


def changed(setting: TensorSetting, values: Any, *, where: str) -> TensorSetting:
    """Return `setting` with the fields in the table `values` replaced.

    Raises:
        RecipeError: `values` is no table, or names a field that does not exist.
    """
    if isinstance(values, TensorSetting):
        return values
    names = [field.name for field in fields(TensorSetting)]
    if not isinstance(values, dict):
        raise RecipeError.explain(
            f"The fixed-point setting {where} = {values!r} cannot be.",
            why=f"it is a table of {', '.join(names)}.",
            fix=f"write {where} = {{bits = 8}}.",
        )
    for name in values:
        if name not in names:
            raise RecipeError.explain(
                f"The fixed-point setting {where} has no field '{name}'.",
                why=f"the fields are {', '.join(names)}.",
                fix="correct the name.",
            )
    none = {name: None for name in ("scale", "compat") if values.get(name) == "none"}
    return replace(setting, **{**values, **none})


def _is_number(value: object, lowest: float, highest: float) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value) and lowest <= value <= highest  # type: ignore[arg-type, operator]


def _invalid_setting(name: str, value: object, why: str) -> RecipeError:
    return RecipeError.explain(
        f"The fixed-point field {name} = {value!r} cannot be.", why=why, fix="see docs/fixed-point.md"
    )
