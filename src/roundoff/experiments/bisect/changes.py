"""What a search changes at the sites it chooses: their format, or the implementation of their ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from roundoff.errors import BisectError
from roundoff.experiments.bisect.options import BisectOptions
from roundoff.experiments.trials.trial import TrialSetting
from roundoff.precision import find_recipe


class Change(Protocol):
    """Turns a set of sites into the setting of a trial."""

    @property
    def noun(self) -> str:
        """What a changed site is: `wide`, `substituted`."""

    @property
    def good_name(self) -> str:
        """What the changed sites use: `fp32`."""

    @property
    def reference_name(self) -> str:
        """The name of the good training: `recipe fp32`."""

    def setting(self, chosen: Iterable[str], *, seed: int | None = None) -> TrialSetting:
        """Return the trial in which exactly these sites are changed."""

    def reference(self, *, seed: int | None = None) -> TrialSetting:
        """Return the good training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideSites:
    """Chosen sites take a wide format; the others keep that of the recipe."""

    bad: str | None
    """The recipe; None keeps the training's own."""
    good: str
    good_name: str
    """The wide format."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """On in every trial."""
    noun: str = "wide"

    @property
    def reference_name(self) -> str:
        """The good recipe."""
        return f"recipe {self.good}"

    def setting(self, chosen: Iterable[str], *, seed: int | None = None) -> TrialSetting:
        """Return the trial in which exactly these sites are wide."""
        overrides = dict.fromkeys(_without_covered_ops(chosen), self.good_name)
        return TrialSetting(recipe=self.bad, overrides=overrides, switches=self.switches, seed=seed)

    def reference(self, *, seed: int | None = None) -> TrialSetting:
        """Return the training with the good recipe."""
        return TrialSetting(recipe=self.good, switches=self.switches, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstitutedSites:
    """Chosen sites or ops run through another implementation."""

    bad: str | None
    """The recipe; None keeps the training's own, if it has one."""
    good_name: str
    """The implementation: `fp64`, `cpu`, `decomposed`, or a user's function, `module:function`."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """On in every trial."""
    noun: str = "substituted"

    @property
    def reference_name(self) -> str:
        """The other implementation, of everything."""
        return f"every op by {self.good_name}"

    def setting(self, chosen: Iterable[str], *, seed: int | None = None) -> TrialSetting:
        """Return the trial in which exactly these sites are substituted."""
        sites = ",".join(_without_covered_ops(chosen))
        substitute = {"substitute": self.good_name, "substitute.ops": sites} if sites else {}
        return TrialSetting(recipe=self.bad, switches={**self.switches, **substitute}, seed=seed)

    def reference(self, *, seed: int | None = None) -> TrialSetting:
        """Return the training with every op substituted."""
        return TrialSetting(recipe=self.bad, switches={**self.switches, "substitute": self.good_name}, seed=seed)

    def listing(self, file: str) -> TrialSetting:
        """Return the trial of one step that lists the ops that can be substituted."""
        listing = {"substitute": self.good_name, "substitute.list": file}
        return TrialSetting(recipe=self.bad, switches={**self.switches, **listing}, steps=1)


def make_change(options: BisectOptions) -> WideSites | SubstitutedSites:
    """Return what the search changes at the chosen sites.

    Raises:
        BisectError, RecipeError: a recipe does not exist, or cannot be applied to single sites.
    """
    bad = None if options.bad is None else _resolve_recipe(options.bad)
    if options.substitute is not None:
        return SubstitutedSites(bad=bad, good_name=options.substitute, switches=options.switches)
    good = find_recipe(options.good)
    if good.compute not in ("plain", "cast"):
        raise BisectError.explain(
            f"Invalid --good {options.good}.",
            why="single sites take one format, and this recipe has several.",
            fix="use --good fp32, bf16 or half.",
        )
    return WideSites(
        bad=bad, good=_resolve_recipe(options.good), good_name=good.compute_format, switches=options.switches
    )


def _resolve_recipe(recipe: str) -> str:
    """Return a recipe under a name that works in any working directory; raise if it does not exist."""
    find_recipe(recipe)
    return str(Path(recipe).absolute()) if recipe.endswith(".toml") else recipe


def _without_covered_ops(chosen: Iterable[str]) -> list[str]:
    """Return the chosen sites in order, without ops of whole modules, so that equal trials are equal settings."""
    sites = set(chosen)
    return sorted(site for site in sites if site.partition(":")[0] not in sites - {site})
