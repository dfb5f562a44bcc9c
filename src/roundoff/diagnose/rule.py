"""A rule: a function that finds, what it looks at, its codes, and its place in the decision order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial, wraps
from typing import TypeAlias, TypedDict

from roundoff.runs import Event, Finding, Run, Severity

Found: TypeAlias = Finding | Sequence[Finding | None] | None
Find: TypeAlias = Callable[[Run], Found]
FindInRank: TypeAlias = Callable[[Run, int], Found]
Need: TypeAlias = Callable[[Run], str | None]
"""Returns why a run has nothing for a rule to look at, or None if it has."""

error = partial(Finding, severity=Severity.ERROR)
warning = partial(Finding, severity=Severity.WARNING)
note = partial(Finding, severity=Severity.NOTE)


class FaultEffect(Enum):
    """What a fault does to a training, so that rules can name their causes without knowing the rules that find them."""

    BLOWS_UP = "the training blows up"
    STOPS_LEARNING = "the weights hardly change"
    NONFINITE = "something becomes NaN or infinite"
    BREAKS_EVALUATION = "the model is wrong in eval mode"
    ANY = "anything another rule finds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One code that findings carry, explained for any training: the text of its docs page."""

    name: str
    means: str
    fix: str
    detected: str = ""
    """What distinguishes it from the other codes of its rule; a rule with one code says that in its docstring."""
    leads_to: tuple[FaultEffect, ...] = ()
    follows_from: tuple[str | FaultEffect, ...] = ()
    """Causes, as codes or effects: a finding of one at the same step or before makes this one a related finding."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Something to look for in a run, called with the run.

    A module in one of the family folders registers its rules by having them; nothing else names them.
    """

    order: int
    """Its place in the decision order, unique: of two equally severe findings, the one of the earlier rule leads.

    The hundreds are the questions of docs/my-training-is-wrong.md; tens leave room for rules to come.
    """
    checks: str
    """What it looks at, as `--explain` lists it."""
    find: Find
    codes: tuple[Code, ...]
    """The most severe first."""
    needs: tuple[Need, ...] = ()
    """Checked in order when nothing was found: the first that is missing is the reason why."""

    def __call__(self, run: Run) -> list[Finding]:
        """Return what is wrong with a run."""
        return _as_list(self.find(run))

    def missing(self, run: Run) -> str | None:
        """Return why this run gives the rule nothing to look at; None if it could look."""
        return next((reason for need in self.needs if (reason := need(run)) is not None), None)


def rule(*codes: Code, order: int, checks: str, needs: Sequence[Need] = ()) -> Callable[[Find], Rule]:
    """Make a rule of the function below, which finds faults with these codes."""
    return lambda find: Rule(order=order, checks=checks, find=find, codes=codes, needs=tuple(needs))


def _as_list(found: Found) -> list[Finding]:
    several = [found] if found is None or isinstance(found, Finding) else found
    return [finding for finding in several if finding is not None]


def on_first_rank(find: FindInRank) -> Find:
    """Make a function look at one rank after another until it finds something: all ranks run the same loop."""

    @wraps(find)
    def find_in_run(run: Run) -> Found:
        return next((found for rank in run.ranks if (found := _as_list(find(run, rank)))), None)

    return find_in_run


def on_each_rank(find: FindInRank) -> Find:
    """Make a function look at every rank and return the first finding of each."""

    @wraps(find)
    def find_in_run(run: Run) -> list[Finding]:
        return [finding for rank in run.ranks for finding in _as_list(find(run, rank))[:1]]

    return find_in_run


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingText:
    """The words of a finding."""

    title: str
    why: str
    fix: str


class Place(TypedDict):
    """Where an event is, as fields of a finding."""

    step: int
    rank: int
    phase: str
    site: str
    op: str
    source: str | None


def place_of(event: Event) -> Place:
    """Return where an event is: `error(rule=..., **place_of(event))`."""
    return Place(
        step=event.step, rank=event.rank, phase=event.phase, site=event.site, op=event.op_name, source=event.source
    )
