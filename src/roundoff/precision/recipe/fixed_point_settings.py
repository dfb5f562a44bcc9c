"""Fixed-point settings of a model: one for each kind of tensor, with overrides by type and by site, also as TOML."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, get_args

from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.recipe.tensor_setting import TensorSetting, with_fields

TensorKind = Literal["weight", "bias", "activation", "gradient", "error", "norm", "buffer"]
"""`gradient` is the gradient of parameters, `error` that of activations; `norm` are the parameters of norms, `buffer`
their running statistics."""
KINDS: Final[tuple[TensorKind, ...]] = get_args(TensorKind)
Norms = Literal["float", "quantized"]
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
    """`float` leaves the parameters and running statistics of norms alone; `quantized` quantizes them on use."""
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
                more = f" and {len(sites) - 12} more" if len(sites) > 12 else ""
                raise _matches_nothing(f"site '{pattern}'", f"its sites are {', '.join(sites[:12])}{more}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts that `from_dict` turns back into the same settings."""
        tables = {table: _plain_overrides(getattr(self, table)) for table in _TABLES if getattr(self, table)}
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
    return any(fnmatch.fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


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


def _plain_overrides(table: Overrides) -> dict[str, dict[str, dict[str, Any]]]:
    return {key: {kind: setting.to_dict() for kind, setting in overrides.items()} for key, overrides in table.items()}


def _differing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != usual[name]}


def _matches_nothing(what: str, why: str) -> RecipeError:
    return RecipeError.explain(
        f"The fixed-point override for {what} matches nothing in the model.",
        why=f"{why}.",
        fix="correct or remove it.",
    )


def settings_to_toml(settings: FixedPointSettings) -> str:
    """Return the settings as TOML, with every field of every kind of tensor; it reads back as the same value.

    >>> print(settings_to_toml(FixedPointSettings()).partition("[bias]")[0])
    norms = "float"
    <BLANKLINE>
    [weight]
    bits = 8
    method = "auto"
    range = "max"
    float_scale = false
    rounding = "nearest"
    granularity = "tensor"
    scale = "none"
    compat = "none"
    percentile = 99.9
    """
    return "\n".join(_lines(settings.to_dict(), ())).lstrip("\n") + "\n"


def settings_from_toml(text: str) -> FixedPointSettings:
    """Read settings from TOML; missing fields have their defaults.

    Raises:
        RecipeError: the text is not TOML, a name is unknown, or a value is invalid.
    """
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError.explain("The fixed-point settings are not TOML.", why=f"{error}.") from error
    return FixedPointSettings.from_dict(plain)


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        yield from ("", f"[{'.'.join(path)}]")
    for key, value in plain.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(
                value, (*path, key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False))
            )
