"""What a bisection can be told, and what it tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundoff.errors import BisectError, UsageError
from roundoff.experiments.trials.judges import check_judge
from roundoff.switches import switched


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """What to search for, who judges, and how much it may cost; a `RoundoffError` says what cannot be."""

    good: str = "fp32"
    """The recipe whose format sites are given."""
    bad: str | None = None
    """The recipe that spoils the training; None: the training's own."""
    judge: str = "auto"
    sites: tuple[str, ...] = ()
    """Patterns of sites to search among; all if there are none. Of a command: the sites themselves."""
    seeds: int = 3
    """How often the reference is trained, each time with another seed, to learn its noise."""
    repeats: int = 1
    """How many runs judge one set; an odd number, of which the majority decides."""
    modules_only: bool = False
    """Do not search the ops inside the modules that were found."""
    mirror: bool = False
    """Find a smallest set of sites that spoils a good run, instead of one that saves a bad one."""
    max_runs: int | None = None
    """How many runs the search may make, those before it not counted."""
    max_seconds: float | None = None
    substitute: str | None = None
    """Search by running ops through this implementation, and not by formats."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Other switches, on in every run."""
    auto: bool = False
    """Try what experienced people try first, and let that decide what is searched for."""
    against: Path | None = None
    """The folder of a good run, which `auto` compares with."""

    def __post_init__(self) -> None:
        check_judge(self.judge)
        self._check_switches()
        for site in self.sites:
            if self.sites.count(site) > 1:
                raise UsageError.explain(f"--sites names {site} twice.", fix="name every site once.")
        if self.repeats % 2 == 0:
            raise UsageError.explain(
                f"--repeats={self.repeats} cannot be.", why="the majority of the runs decides.", fix="use 1, 3, 5, ..."
            )
        if self.against is not None and not self.auto:
            raise BisectError.explain("--against is compared with by --auto only.", fix="add --auto, or leave it out.")
        if self.auto and (self.mirror or self.substitute):
            raise BisectError.explain("--auto chooses itself what is searched for.", fix="leave out the other option.")
        if self.seeds < 1:
            raise BisectError.explain(f"--seeds {self.seeds} cannot be.", why="the reference is trained at least once.")

    def _check_switches(self) -> None:
        """Raise if a switch does not exist, or not with this value."""
        switches = dict(self.switches)
        if self.substitute is not None:
            # A user's function is looked for where the training is, which is not here.
            switches["substitute"] = "fp64" if ":" in self.substitute else self.substitute
        switched(switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectEvent:
    """One run has ended, or something was learned without one."""

    what: str
    """What was tried: `as it is`, `3 sites wide`."""
    verdict: str
    """What the judge says of it; empty if nobody was asked."""
    num_runs: int | None = None
    """Which run of the search this was; None: one before it."""
    at_most: int | None = None
    """How many runs the search takes at most if there is one culprit, or may take."""
    known: tuple[str, ...] = ()
    """The smallest set so far that contains the culprits."""
    seconds_left: float | None = None
    is_new: bool = True
    """Whether it was run now, and not kept from before."""


OnEvent = Callable[[BisectEvent], None]
