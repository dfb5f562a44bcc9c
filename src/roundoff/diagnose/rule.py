"""A rule as a value: what it looks at, the function that finds, its codes, and its place in the decision order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from roundoff.runs import Finding, Run

Need: TypeAlias = Callable[[Run], str | None]
"""Returns why a run has nothing for a rule to look at, or None if it has."""


class Effect(Enum):
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
    leads_to: tuple[Effect, ...] = ()
    follows_from: tuple[str | Effect, ...] = ()
    """Causes, as codes or effects: a finding of one at the same step or before makes this one a related finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Something to look for in a run.

    A module in one of the family folders registers its rules by listing them in `RULES`; nothing else names them.
    """

    order: int
    """Its place in the decision order, unique: of two equally severe findings, the one of the earlier rule leads.

    The hundreds are the questions of docs/my-training-is-wrong.md; tens leave room for rules to come.
    """
    checks: str
    """What it looks at, as `--explain` lists it."""
    find: Callable[[Run], list[Finding]]
    codes: tuple[Code, ...]
    """The most severe first."""
    needs: tuple[Need, ...] = ()
    """Asked in order when nothing was found: the first that is missing is the reason why."""

    def missing(self, run: Run) -> str | None:
        """Return why this run gives the rule nothing to look at; None if it could look."""
        return next((reason for need in self.needs if (reason := need(run)) is not None), None)
