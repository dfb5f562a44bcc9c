"""Fixed-point settings: bits, scale and rounding of each kind of tensor, with overrides by type and by site."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

from roundoff.errors import RecipeError
from roundoff.kernels.rounding_rules import FixedRule, Range
from roundoff.words import join_names

if TYPE_CHECKING:
    from torch import nn

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
        f"The fixed-point field {name} = {value!r} is invalid.", why=why, fix="see `roundoff docs fixed-point`"
    )


TensorKind = Literal["weight", "bias", "activation", "gradient", "error", "norm", "buffer"]
"""`gradient` is the gradient of parameters, `error` that of activations; `norm` are the parameters of norms, `buffer`
their running statistics."""
KINDS: Final[tuple[TensorKind, ...]] = get_args(TensorKind)
Norms = Literal["float", "quantized", "accumulated"]
_NARROW: Final = TensorSetting(bits=8)
_WIDE: Final = TensorSetting(bits=16)
_TABLES: Final[tuple[str, ...]] = ("types", "sites")
_HAVE_NO_BATCH: Final[tuple[TensorKind, ...]] = ("weight", "bias", "gradient", "norm", "buffer")

Overrides = Mapping[str, Mapping[TensorKind, TensorSetting]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPointSettings:
    """A setting for each kind of tensor; `types` and `sites` replace them for some modules.

    `types` is keyed by class name (subclasses match too), `sites` by patterns of module names, in which `*` also
    matches dots; modules below a matching module match too. Sites win over types, later patterns over earlier ones. A
    name or pattern that matches nothing in the model is an error at conversion.

    >>> settings = FixedPointSettings(sites={"head": {"activation": TensorSetting(method="none")}})
    >>> settings.weight.bits
    8
    """

    weight: TensorSetting = _NARROW
    bias: TensorSetting = _WIDE
    activation: TensorSetting = _NARROW
    gradient: TensorSetting = _NARROW
    error: TensorSetting = _NARROW
    norm: TensorSetting = _WIDE
    buffer: TensorSetting = _WIDE
    norms: Norms = "float"
    """`float` leaves the parameters and running statistics of norms alone; `quantized` quantizes them on use;
    `accumulated` also accumulates the statistics on quantized values, as nics_fix_pt does, where they can get stuck."""
    types: Overrides = field(default_factory=dict)
    sites: Overrides = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.norms not in get_args(Norms):
            raise RecipeError.explain(
                f"The fixed-point setting norms = {self.norms!r} is invalid.",
                why=f"allowed: {', '.join(get_args(Norms))}.",
            )
        for table in _TABLES:
            object.__setattr__(self, table, {key: dict(value) for key, value in getattr(self, table).items()})
        for where, kind, setting in self._each():
            _check(where, kind, setting)

    @classmethod
    def uniform(cls, **setting: Any) -> Self:
        """Return settings that are the same for every kind of tensor: `FixedPointSettings.uniform(bits=6)`."""
        one = with_fields(TensorSetting(), setting, where="uniform")
        return cls(weight=one, bias=one, activation=one, gradient=one, error=one, norm=one, buffer=one)

    def of(self, kind: TensorKind, *, site: str, module: nn.Module) -> TensorSetting:
        """Return the setting of one kind of tensor in the module at `site`."""
        found: TensorSetting = getattr(self, kind)
        names = {cls.__name__ for cls in type(module).__mro__}
        for name, overrides in self.types.items():
            if name in names:
                found = overrides.get(kind, found)
        for pattern, overrides in self.sites.items():
            if covers(pattern, site):
                found = overrides.get(kind, found)
        return found

    def check_fits(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Raise a RecipeError if a type or a pattern matches nothing among the named modules."""
        named = list(modules)
        types = sorted({type(module).__name__ for _, module in named})
        ancestors = {cls.__name__ for _, module in named for cls in type(module).__mro__}
        for name in self.types:
            if name not in ancestors - {"Module", "object"}:
                raise _matches_nothing(f"type '{name}'", f"its types are {', '.join(types)}")
        sites = [name for name, _ in named if name]
        for pattern in self.sites:
            if not fnmatch.filter(sites, pattern):
                raise _matches_nothing(f"site '{pattern}'", f"its sites are {join_names(sites, at_most=12)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts that `from_dict` turns back into the same settings."""
        tables = {
            table: {
                key: {kind: setting.to_dict() for kind, setting in overrides.items()}
                for key, overrides in getattr(self, table).items()
            }
            for table in _TABLES
            if getattr(self, table)
        }
        return {"norms": self.norms, **{kind: getattr(self, kind).to_dict() for kind in KINDS}, **tables}

    def changes(self) -> dict[str, Any]:
        """Return the part of `to_dict` that differs from the defaults, which is enough for `from_dict`."""
        plain, default = self.to_dict(), FixedPointSettings().to_dict()
        norms = {} if self.norms == default["norms"] else {"norms": self.norms}
        kinds = {kind: _differing(plain[kind], default[kind]) for kind in KINDS}
        tables = {
            table: {
                key: {kind: _differing(values, plain[kind]) for kind, values in overrides.items()}
                for key, overrides in plain[table].items()
            }
            for table in _TABLES
            if table in plain
        }
        return {**norms, **{kind: values for kind, values in kinds.items() if values}, **tables}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Make settings from plain dicts; missing fields have their defaults, in overrides those of their kind.

        Raises:
            RecipeError: a name is unknown, or a value is invalid.
        """
        allowed = [f.name for f in fields(cls)]
        for name in plain:
            if name not in allowed:
                raise RecipeError.explain(
                    f"Unknown fixed-point setting '{name}'.", why=f"known are {', '.join(allowed)}."
                )
        defaults = cls()
        kinds: dict[str, TensorSetting] = {
            kind: with_fields(getattr(defaults, kind), plain.get(kind, {}), where=kind) for kind in KINDS
        }
        tables = {table: _overrides(plain.get(table, {}), kinds, where=table) for table in _TABLES}
        return cls(norms=plain.get("norms", defaults.norms), **kinds, **tables)  # type: ignore[arg-type]

    def _each(self) -> Iterable[tuple[str, str, TensorSetting]]:
        yield from ((kind, kind, getattr(self, kind)) for kind in KINDS)
        for table in _TABLES:
            for key, overrides in getattr(self, table).items():
                yield from ((f"{table}.{key}.{kind}", kind, setting) for kind, setting in overrides.items())


def covers(pattern: str, site: str) -> bool:
    """Whether a pattern matches a site, or a module that the site is part of."""
    parts = site.split(".")
    around = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return pattern in around or any(fnmatch.fnmatchcase(each, pattern) for each in around)


def _check(where: str, kind: str, setting: object) -> None:
    if kind not in KINDS:
        raise RecipeError.explain(
            f"Unknown kind of tensor '{kind}' in the fixed-point setting {where}.", why=f"known are {', '.join(KINDS)}."
        )
    if not isinstance(setting, TensorSetting):
        raise RecipeError.explain(
            f"The fixed-point setting {where} = {setting!r} is invalid.", why="use a TensorSetting."
        )
    if setting.granularity == "batch" and kind in _HAVE_NO_BATCH:
        raise RecipeError.explain(
            f"The fixed-point setting {where} cannot have the granularity 'batch'.",
            why="only activations and errors have one row for each sample.",
            fix="use 'tensor' or 'channel'.",
        )


def _overrides(plain: Any, kinds: Mapping[str, TensorSetting], *, where: str) -> dict[str, dict[str, TensorSetting]]:
    if not isinstance(plain, Mapping) or not all(isinstance(table, Mapping) for table in plain.values()):
        raise RecipeError.explain(
            f"The fixed-point setting {where} = {plain!r} is invalid.",
            why="it must be a table of tables.",
            fix=f'write [{where}."name".weight], and bits = 8 on the next line.',
        )
    return {
        key: {
            kind: with_fields(kinds.get(kind, TensorSetting()), values, where=f"{where}.{key}.{kind}")
            for kind, values in table.items()
        }
        for key, table in plain.items()
    }


def _differing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != usual[name]}


def _matches_nothing(what: str, why: str) -> RecipeError:
    return RecipeError.explain(
        f"The fixed-point override for {what} matches nothing in the model.",
        why=f"{why}.",
        fix="correct or remove it.",
    )
