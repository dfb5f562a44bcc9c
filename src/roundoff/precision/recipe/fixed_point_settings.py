"""Fixed-point settings of a whole model: one for each kind of tensor, with overrides by type and by site."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, get_args

from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.recipe.tensor_setting import TensorSetting, changed

TensorKind = Literal["weight", "bias", "activation", "gradient", "error", "norm", "buffer"]
"""`gradient` is that of parameters, `error` that of activations; `norm` the parameters of norms, `buffer` their
running statistics."""
KINDS: Final[tuple[TensorKind, ...]] = get_args(TensorKind)
_NARROW: Final = TensorSetting(bits=8)
_WIDE: Final = TensorSetting(bits=16)
_HAVE_NO_BATCH: Final[tuple[TensorKind, ...]] = ("weight", "bias", "gradient", "norm", "buffer")

Overrides = Mapping[str, Mapping[TensorKind, TensorSetting]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPointSettings:
    """A setting for each kind of tensor; `types` and `sites` replace them for some modules.

    `types` is keyed by class name (a subclass counts), `sites` by patterns of module names in which `*` also matches
    dots; what is below a matching module follows it. Sites win over types, later patterns over earlier ones. A name or
    pattern that matches nothing in the model is an error when it is converted.

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
    types: Overrides = field(default_factory=dict)
    sites: Overrides = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in ("types", "sites"):
            object.__setattr__(self, table, {key: dict(value) for key, value in getattr(self, table).items()})
        for where, kind, setting in self._each():
            _check(where, kind, setting)

    @classmethod
    def uniform(cls, **setting: Any) -> Self:
        """Return settings in which every kind of tensor has the same: `FixedPointSettings.uniform(bits=6)`."""
        one = changed(TensorSetting(), setting, where="uniform")
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
        """Return plain dicts that `from_dict` makes the same settings of."""
        plain: dict[str, Any] = {kind: getattr(self, kind).to_dict() for kind in KINDS}
        for table in ("types", "sites"):
            if getattr(self, table):
                plain[table] = {
                    key: {kind: setting.to_dict() for kind, setting in overrides.items()}
                    for key, overrides in getattr(self, table).items()
                }
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Make settings of plain dicts; a field that is left out has its default, in overrides that of its kind.

        Raises:
            RecipeError: an unknown name anywhere, or a value that cannot be.
        """
        allowed = [f.name for f in fields(cls)]
        for name in plain:
            if name not in allowed:
                raise RecipeError.explain(
                    f"Fixed point has no tensors '{name}'.", why=f"known are {', '.join(allowed)}.", fix="correct it."
                )
        defaults = cls()
        kinds: dict[str, TensorSetting] = {
            kind: changed(getattr(defaults, kind), plain.get(kind, {}), where=kind) for kind in KINDS
        }
        tables = {table: _overrides(plain.get(table, {}), kinds, where=table) for table in ("types", "sites")}
        return cls(**kinds, **tables)  # type: ignore[arg-type]

    def _each(self) -> Iterable[tuple[str, str, TensorSetting]]:
        yield from ((kind, kind, getattr(self, kind)) for kind in KINDS)
        for table in ("types", "sites"):
            for key, overrides in getattr(self, table).items():
                yield from ((f"{table}.{key}.{kind}", kind, setting) for kind, setting in overrides.items())


def covers(pattern: str, site: str) -> bool:
    """Whether a pattern matches a site, or a module that the site is part of."""
    parts = site.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def _check(where: str, kind: str, setting: object) -> None:
    if kind not in KINDS:
        raise RecipeError.explain(
            f"Fixed point has no tensors '{kind}' (in {where}).",
            why=f"known are {', '.join(KINDS)}.",
            fix="correct it.",
        )
    if not isinstance(setting, TensorSetting):
        raise RecipeError.explain(
            f"The fixed-point setting {where} = {setting!r} cannot be.", why="use a TensorSetting."
        )
    if setting.granularity == "batch" and kind in _HAVE_NO_BATCH:
        raise RecipeError.explain(
            f"The fixed-point setting {where} cannot have the granularity 'batch'.",
            why="only activations and errors hold one row for each sample.",
            fix="use 'tensor' or 'channel'.",
        )


def _overrides(plain: Any, kinds: Mapping[str, TensorSetting], *, where: str) -> dict[str, dict[str, TensorSetting]]:
    if not isinstance(plain, Mapping) or not all(isinstance(table, Mapping) for table in plain.values()):
        raise RecipeError.explain(
            f"The fixed-point setting {where} = {plain!r} cannot be.",
            why="it is a table of tables.",
            fix=f'write [{where}."name".weight] and then bits = 8.',
        )
    return {
        key: {
            kind: changed(kinds.get(kind, TensorSetting()), values, where=f"{where}.{key}.{kind}")
            for kind, values in table.items()
        }
        for key, table in plain.items()
    }


def _matches_nothing(what: str, why: str) -> RecipeError:
    return RecipeError.explain(
        f"The fixed-point override for {what} matches nothing in the model.",
        why=f"{why}.",
        fix="correct it, or leave it away: a misspelt override would train in other numbers than you believe.",
    )


# == Fixed-point settings as TOML text: what is written reads back as the same value.


def settings_to_toml(settings: FixedPointSettings) -> str:
    """Write every field of every setting, one table for each kind of tensor.

    >>> print(settings_to_toml(FixedPointSettings()).partition("[bias]")[0])
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
    """Read settings from TOML; what is left out has its default.

    Raises:
        RecipeError: the text is not TOML, or a name in it is unknown.
    """
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError.explain("The fixed-point settings are not TOML.", why=f"{error}.") from error
    return FixedPointSettings.from_dict(plain)


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if plain or not table:
        yield from ("", f"[{'.'.join(path)}]")
    for key, value in plain.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(
                value, (*path, key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False))
            )
