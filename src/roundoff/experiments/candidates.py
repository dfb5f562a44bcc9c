"""Candidates: the sites and ops of a training that may be to blame, the most suspicious first."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Self

from roundoff.errors import BisectError
from roundoff.report.bisect_text import listed
from roundoff.sensitivity.sensitivity import Effect, Sensitivity, most_suspicious
from roundoff.switches import Listing

MODEL_SITE = "<model>"
"""The code of the model itself, outside of all its parts."""
_MOST_SHOWN = 6
_HOLDERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Modules that compute nothing themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What may be to blame, as overrides name it: modules, and the ops inside each."""

    modules: tuple[str, ...]
    """The most suspicious first."""
    ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The ops of each module's own code, `blocks.1.attn:softmax`, the most suspicious first; none if not measured."""
    is_measured: bool = False
    """Whether a measured step ordered them."""
    covers_inner: bool = True
    """Whether to change a module is to change those inside it, too."""
    own_kernels: tuple[str, ...] = ()
    """Operators among them whose own kernels the other implementation runs, too."""

    def inside(self, modules: Iterable[str]) -> tuple[str, ...]:
        """Return the ops that are changed with these modules: the most suspicious of each, then the second ones."""
        sites = dict.fromkeys(site for module in modules for site in self._covered(module))
        in_turn = zip_longest(*(self.ops[site] for site in sites))
        return tuple(op for ops in in_turn for op in ops if op is not None)

    def _covered(self, module: str) -> list[str]:
        inner = [site for site in self.ops if self.covers_inner and site.startswith(f"{module}.")]
        return [module, *inner] if module in self.ops else inner

    def without_ops(self) -> Self:
        """Return the modules alone, for recipes that cannot treat an op in its own way."""
        modules = tuple(module for module in self.modules if ":" not in module)
        return replace(self, modules=modules, ops={})

    def only(self, patterns: Sequence[str]) -> Self:
        """Return those that a pattern matches, `blocks.*.attn`, and what is inside them; all if there is no pattern.

        Raises:
            BisectError: a pattern matches none.
        """
        if not patterns:
            return self
        for pattern in patterns:
            if not any(_matches(site, [pattern]) for site in self.modules):
                raise BisectError.explain(
                    f"--sites {pattern} matches no site.", why=f"there are {listed(self.modules, most=_MOST_SHOWN)}."
                )
        return replace(self, modules=tuple(site for site in self.modules if _matches(site, patterns)))


def candidates_from_names(sites: Mapping[str, str]) -> Candidates:
    """Return the modules of a model by their names and classes: the innermost first, as they stand in the model.

    Modules that only hold others are left out; the code of the model itself comes last.
    """
    computing = [site for site, kind in sites.items() if kind not in _HOLDERS]
    holders = {site.rpartition(".")[0] for site in sites}
    inner = [site for site in computing if site not in holders]
    outer = sorted((site for site in computing if site in holders), key=lambda site: -site.count("."))
    return Candidates(modules=(*inner, *outer))


def candidates_from_step(measured: Sensitivity, *, sites: Mapping[str, str], fmt: str) -> Candidates:
    """Return the modules that rounding to a format touches, in the order in which a measured step suspects them.

    Only those of `sites`, the modules that an override can name, and the code of the model itself.
    """
    by_site: dict[str, list[Effect]] = {}
    for effect in measured.of(fmt):
        by_site.setdefault(effect.site, []).append(effect)
    named = {site: effects for site, effects in by_site.items() if site in sites or site == MODEL_SITE}
    ops = {site: _ops(site, effects) for site, effects in named.items()}
    suspected = sorted(named, key=lambda site: -most_suspicious(named[site]))
    return Candidates(modules=tuple(_key(site) for site in suspected), ops=ops, is_measured=True)


def candidates_from_listing(listing: Listing) -> Candidates:
    """Return the sites whose ops can be substituted, those that differ most from the other implementation first."""
    ops: dict[str, list[str]] = {}
    for op in listing.suspects:
        ops.setdefault(op.site, []).append(op.key)
    return Candidates(
        modules=listing.sites,
        ops={site: tuple(keys) for site, keys in ops.items()},
        is_measured=True,
        covers_inner=False,
        own_kernels=listing.own_kernels,
    )


def _ops(site: str, effects: Sequence[Effect]) -> tuple[str, ...]:
    by_op: dict[str, list[Effect]] = {}
    for effect in effects:
        by_op.setdefault(effect.op, []).append(effect)
    return tuple(f"{site}:{op}" for op in sorted(by_op, key=lambda op: -most_suspicious(by_op[op])))


def _key(site: str) -> str:
    """Return the override that keeps a site wide; the model's own code has no name but its ops."""
    return f"{MODEL_SITE}:*" if site == MODEL_SITE else site


def _matches(site: str, patterns: Sequence[str]) -> bool:
    parts = site.split(".")
    outer = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns for each in outer)
