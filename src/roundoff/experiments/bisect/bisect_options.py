"""The options of a bisection, the events that it reports, and what it changes at the sites it chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundoff.errors import BisectError, UsageError
from roundoff.experiments.engine.scheduler import Backend
from roundoff.experiments.trials.judges import check_judge
from roundoff.experiments.trials.trial import TrialSetting
from roundoff.precision import find_recipe
from roundoff.switches import switching


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """What to search for, how to judge, and how much it may cost; invalid values raise a `RoundoffError`."""

    good: str = "fp32"
    """The recipe whose format the chosen sites take."""
    bad: str | None = None
    """The recipe that makes the training bad; None: the training's own."""
    judge: str = "auto"
    sites: tuple[str, ...] = ()
    """Patterns of the sites to search; empty: all of them. For a command: the sites themselves."""
    seeds: int = 3
    """How many times the reference is trained, each time with another seed, to measure its noise."""
    repeats: int = 1
    """How many runs judge one set of sites; an odd number, because the majority decides."""
    modules_only: bool = False
    """Do not search the ops inside the modules that were found."""
    mirror: bool = False
    """Find a smallest set of sites that makes a good run bad, instead of one that makes a bad run good."""
    max_runs: int | None = None
    """How many runs the search may make, not counting those before it."""
    max_seconds: float | None = None
    substitute: str | None = None
    """Search by running ops through this implementation instead of by formats."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Other switches, on in every run."""
    auto: bool = False
    """Run the standard checks first, and let them decide what to search."""
    against: Path | None = None
    """The folder of a good run for `auto` to compare with."""
    runs: Path = Path("runs")
    """The parent directory of the folder of the bisection."""
    name: str | None = None
    """The name of that folder; None: the next of `bisect-1`, `bisect-2`, ..."""
    jobs: int = 1
    """How many runs there are at a time, where they do not depend on each other."""
    on: Backend = "pool"
    """Where runs are made."""

    @property
    def with_rules(self) -> bool:
        """Whether the judge needs the findings of each run."""
        return self.judge.startswith("rule:")

    def __post_init__(self) -> None:
        check_judge(self.judge)
        self._check_switches()
        for site in self.sites:
            if self.sites.count(site) > 1:
                raise UsageError.explain(f"--sites names {site} twice.", fix="name every site once.")
        if self.repeats % 2 == 0:
            raise UsageError.explain(
                f"Invalid --repeats {self.repeats}.",
                why="the majority decides, so it must be odd.",
                fix="use 1, 3, 5, ...",
            )
        if self.against is not None and not self.auto:
            raise BisectError.explain("--against works only with --auto.", fix="add --auto, or leave it out.")
        if self.auto and (self.mirror or self.substitute):
            raise BisectError.explain(
                "--auto cannot be combined with --mirror or --switch substitute.",
                why="it decides itself what to search.",
                fix="leave one of them out.",
            )
        if self.seeds < 1:
            raise BisectError.explain(f"Invalid --seeds {self.seeds}: at least 1 is needed.")

    def _check_switches(self) -> None:
        """Raise if a switch does not exist, or its value is invalid."""
        switches = dict(self.switches)
        if self.substitute is not None:
            # A user's function can only be imported where the training runs, so another value is checked in its place.
            switches["substitute"] = "fp64" if ":" in self.substitute else self.substitute
        switching(switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectEvent:
    """One run has ended, or the search has learned something without a run."""

    what: str
    """What was tried: `unchanged`, `3 sites wide`."""
    verdict: str
    """The verdict of the judge; empty if there is none."""
    num_runs: int | None = None
    """The number of this run in the search; None: a run before the search."""
    at_most: int | None = None
    """How many runs the search needs at most if there is one culprit, or how many it may make."""
    known: tuple[str, ...] = ()
    """The smallest set so far that contains the culprits."""
    seconds_left: float | None = None
    is_new: bool = True
    """Whether it was run now, and not read from the folder."""


OnEvent = Callable[[BisectEvent], None]


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
    """What a changed site is."""

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


SiteChange = WideSites | SubstitutedSites


def make_change(options: BisectOptions) -> SiteChange:
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
