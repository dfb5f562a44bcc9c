"""What is done to the sites that a search chooses: they take a format, or another implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from roundoff.experiments.trials.trial import TrialSetting


class Change(Protocol):
    """Turns a set of sites into the setting of a trial."""

    @property
    def noun(self) -> str:
        """What the chosen sites are called: `wide`, `substituted`."""

    @property
    def good_name(self) -> str:
        """What the changed sites have: `fp32`."""

    @property
    def reference_name(self) -> str:
        """What the good training is called: `recipe fp32`."""

    def setting(self, chosen: Iterable[str], *, seed: int | None = None) -> TrialSetting:
        """Return the trial in which exactly these sites are changed."""

    def reference(self, *, seed: int | None = None) -> TrialSetting:
        """Return the good training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideSites:
    """Chosen sites take a wide format, the others that of the recipe."""

    bad: str | None
    """The recipe; None: the training's own."""
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
        overrides = dict.fromkeys(_needed(chosen), self.good_name)
        return TrialSetting(recipe=self.bad, overrides=overrides, switches=self.switches, seed=seed)

    def reference(self, *, seed: int | None = None) -> TrialSetting:
        """Return the training with the good recipe."""
        return TrialSetting(recipe=self.good, switches=self.switches, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstitutedSites:
    """Chosen sites or ops run through another implementation."""

    bad: str | None
    """The recipe; None: the training's own, if it has one."""
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
        sites = ",".join(_needed(chosen))
        substitute = {"substitute": self.good_name, "substitute.ops": sites} if sites else {}
        return TrialSetting(recipe=self.bad, switches={**self.switches, **substitute}, seed=seed)

    def reference(self, *, seed: int | None = None) -> TrialSetting:
        """Return the training with every op substituted."""
        return TrialSetting(recipe=self.bad, switches={**self.switches, "substitute": self.good_name}, seed=seed)

    def listing(self, file: str) -> TrialSetting:
        """Return the trial of one step that lists the ops that can be substituted."""
        listing = {"substitute": self.good_name, "substitute.list": file}
        return TrialSetting(recipe=self.bad, switches={**self.switches, **listing}, steps=1)


def _needed(chosen: Iterable[str]) -> list[str]:
    """Return the chosen sites in order, without the ops of modules that are chosen whole: one trial has one name."""
    sites = set(chosen)
    return sorted(site for site in sites if site.partition(":")[0] not in sites - {site})
