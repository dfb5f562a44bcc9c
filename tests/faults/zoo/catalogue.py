"""What is in the zoo: every faulty training with what must be found in it, and every healthy one.

Nothing here imports torch or roundoff: other tools are scored without either.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).parents[1]


class Reported(Protocol):
    """What a tool reports: one thing that is wrong, and where. roundoff's `Finding` is one."""

    @property
    def rule(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def related(self) -> Sequence[Reported]: ...


class Score(StrEnum):
    """How well a run was diagnosed."""

    RIGHT = "named right"
    AMONG_THREE = "in the top three"
    MISSED = "missed"
    SILENT = "silent, as it should"
    FALSE_ALARM = "false alarm"
    FAILED = "did not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must be found in one script: a rule and its place as far as they are given, or nothing."""

    name: str
    rule: str | None = None
    step: int | None = None
    site: str | None = None
    op: str | None = None
    parameter: str | None = None
    rank: int | None = None
    source: str | None = None
    severity: str = "error"
    says: tuple[str, ...] = ()
    """Words that the finding's text must hold."""
    related: str | None = None
    """A rule that must be among the finding's related ones."""
    options: tuple[str, ...] = ()
    """Of `roundoff run`."""
    ranks: int = 1
    held_out: bool = False
    """Written after the rule, which was never tuned on it."""
    healthy: bool = False
    fails: str | None = None
    """Why the diagnosis of this script is wrong today: a test that fails as expected, until the rule is improved."""
    seed: int | None = None
    folder: Path = FOLDER
    inside: str | None = None
    """The module that a guise put the training's model and loop into: `net`."""

    @property
    def title(self) -> str:
        """What it is called in the score."""
        return self.name if not self.seed else f"{self.name}, seed {self.seed}"

    @property
    def script(self) -> Path:
        """The training."""
        return self.folder / f"{self.name}.py"

    @property
    def text(self) -> str:
        """What must be found, as words."""
        if self.healthy:
            return "neither an error nor a warning"
        related = [f"related to {self.related}"] if self.related else []
        return ", ".join([*(f"{name} {value}" for name, value in self._place.items()), *map(repr, self.says), *related])

    @property
    def _place(self) -> dict[str, str | int]:
        names = ("severity", "rule", "step", "site", "op", "parameter", "rank", "source")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def is_met_by(self, finding: Reported) -> bool:
        """Say whether a finding has the rule and the place."""
        is_there = all(self._found(finding, name) == str(value) for name, value in self._place.items())
        text = f"{finding.title}\n{finding.why}\n{finding.fix}"
        is_related = self.related is None or self.related in [related.rule for related in finding.related]
        return is_there and is_related and all(words in text for words in self.says)

    def at_line_of(self, script: str) -> Expected:
        """Return the same with its place in a script of another name."""
        return self if self.source is None else replace(self, source=f"{script}:{self.source.rpartition(':')[2]}")

    def _found(self, finding: Reported, name: str) -> str:
        """Return a part of a finding's place, as it would be without the guise."""
        found = str(getattr(finding, name))
        if self.inside is None or name not in ("site", "parameter"):
            return found
        if found in ("<model>", self.inside) and self.site in ("<loop>", "<model>"):
            return self.site  # the loop is in a model now, and the model in that
        return found.removeprefix(f"{self.inside}.")

    def judge(self, findings: Sequence[Reported]) -> Score:
        """Say how good an answer the findings are."""
        if self.healthy:
            is_quiet = all(finding.severity == "note" for finding in findings)
            return Score.SILENT if is_quiet else Score.FALSE_ALARM
        if findings and self.is_met_by(findings[0]):
            return Score.RIGHT
        return Score.AMONG_THREE if self.rule in [finding.rule for finding in findings[:3]] else Score.MISSED


def expectations() -> list[Expected]:
    """Return what is expected of every script, in the order of expected.toml."""
    tables = tomllib.loads((FOLDER / "expected.toml").read_text())
    return [Expected(name=name, **table) for name, table in tables.items()]


def healthy_kinds() -> list[Expected]:
    """Return the scripts of tests/watch/kinds: many kinds of training, all healthy."""
    folder = FOLDER.parent / "watch" / "kinds"
    return [
        Expected(name=path.stem, healthy=True, folder=folder, ranks=2 if path.stem.startswith("two_ranks") else 1)
        for path in sorted(folder.glob("*.py"))
    ]


def healthy_trainings(*, num_seeds: int = 1) -> list[Expected]:
    """Return the scripts of healthy/, which look faulty and are not, once with each seed."""
    folder = FOLDER / "healthy"
    names = [path.stem for path in sorted(folder.glob("*.py"))]
    return [Expected(name=name, healthy=True, seed=seed, folder=folder) for seed in range(num_seeds) for name in names]
