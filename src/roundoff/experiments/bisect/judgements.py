"""The judgements of a search: each set is judged only as often as needed, within a budget, and stored in a file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from roundoff.errors import BisectError
from roundoff.files import write_atomically
from roundoff.runs.files.lines import append_lines, drop_partial_line, read_lines
from roundoff.runs.files.plain_json import JsonValue, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict of one run on one set of sites."""

    sites: frozenset[str]
    holds: bool


def open_judgements(path: Path, *, question: str, sites: Sequence[str]) -> list[Judgement]:
    """Return the judgements in a file, in order; create the file if it does not exist, but not its folder.

    The first line holds the question and the sites, every other line one judgement. An incomplete last line is
    removed from the file.

    Raises:
        BisectError: the file is something else, or belongs to another question or other sites.
        RunFolderError: a line in it is damaged.
    """
    header: dict[str, JsonValue] = {"question": question, "all_sites": list(sites)}
    if not path.exists() or path.stat().st_size == 0:
        if not path.absolute().parent.is_dir():
            raise BisectError.explain(
                f"The judgements cannot be written to '{path}'.",
                why="its folder does not exist.",
                fix="create the folder, or name another file.",
            )
        write_atomically(path, f"{to_json(header)}\n".encode())
        return []
    _check_header(path, question=question, sites=sites)
    drop_partial_line(path)
    return [judgement for judgement in read_lines(path, _parse_judgement) if judgement is not None]


def append_judgement(path: Path, judgement: Judgement) -> None:
    """Append a judgement to the file at once, so that it survives whatever happens to this process."""
    append_lines(path, [to_json({"sites": sorted(judgement.sites), "holds": judgement.holds})])


def _check_header(path: Path, *, question: str, sites: Sequence[str]) -> None:
    """Raise if the file belongs to something else, so that this search must neither use nor change it."""
    with path.open("rb") as file:
        has_header = file.readline().startswith(b'{"question": ')
    # The header is written atomically with the file, so a file without a complete one was not made by a bisection.
    header = next(read_lines(path, dict), None) if has_header else None
    if header is None:
        raise BisectError.explain(
            f"'{path}' does not hold the judgements of a bisection.",
            why="its first line is not the header that a bisection writes.",
            fix="name another file, or one that does not exist yet.",
        )
    known = header.get("all_sites")
    same_sites = isinstance(known, list) and {str(site) for site in known} == set(sites)
    if header["question"] != question or not same_sites:
        raise BisectError.explain(
            f"'{path}' holds the judgements of another bisection.",
            why=f"it was made by {header['question']}{'' if same_sites else ' with other sites'}.",
            fix="name another file, or delete this one.",
        )


def _parse_judgement(line: dict[str, JsonValue]) -> Judgement | None:
    """Parse a line; the header, which is no judgement, gives None."""
    if "question" in line:
        return None
    sites, holds = line.get("sites"), line.get("holds")
    if not isinstance(sites, list) or not isinstance(holds, bool):
        raise ValueError("it does not hold the sites and their judgement")
    return Judgement(sites=frozenset(str(site) for site in sites), holds=holds)


Limit = Literal["max_runs", "deadline_seconds"]


class OutOfBudget(Exception):
    """The budget does not allow the next run, which has not been started."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.limit: Limit = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a search may cost. A run that has started is never interrupted."""

    max_runs: int | None = None
    deadline_seconds: float | None = None

    def limit_after(self, *, num_runs: int, seconds: float) -> Limit | None:
        """Return the limit that forbids another run, if any."""
        if self.max_runs is not None and num_runs >= self.max_runs:
            return "max_runs"
        if self.deadline_seconds is not None and seconds >= self.deadline_seconds:
            return "deadline_seconds"
        return None

    def check(self, *, num_runs: int, began: float) -> None:
        """Raise `OutOfBudget` if another run is not allowed; `began` is a time of `time.monotonic`."""
        if limit := self.limit_after(num_runs=num_runs, seconds=time.monotonic() - began):
            raise OutOfBudget(limit)


@dataclass(slots=True, kw_only=True)
class Judgements:
    """What is known about sets of sites; called with a set, it says whether the property holds, making runs if needed.

    Raises:
        OutOfBudget: it would need a run that the budget does not allow.
    """

    judge: Callable[[frozenset[str]], bool]
    repeats: int
    """How many runs judge one set at most: the majority decides, and runs that cannot change it are left out."""
    budget: Budget
    on_run: Callable[[Judgement], None]
    """Called with every judgement as soon as its run has ended."""
    num_runs: int = 0
    num_cached: int = 0
    """Questions that were answered without any run."""
    _votes: dict[frozenset[str], Counter[bool]] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def remember(self, judgements: Iterable[Judgement]) -> None:
        """Add judgements of earlier runs."""
        for judgement in judgements:
            self._votes.setdefault(judgement.sites, Counter())[judgement.holds] += 1

    def __call__(self, sites: Sequence[str]) -> bool:
        """Say whether the property holds for these sites."""
        chosen = frozenset(sites)
        answer = self._majority(chosen)
        if answer is not None:
            self.num_cached += 1
            return answer
        while (answer := self._majority(chosen)) is None:
            self._run(chosen)
        return answer

    def smallest(self) -> frozenset[str] | None:
        """Return a smallest set for which the property is known to hold, or None."""
        return min((sites for sites in self._votes if self._majority(sites)), key=len, default=None)

    def _majority(self, sites: frozenset[str]) -> bool | None:
        """Return what more than half of the runs say, whatever the others will; None if more runs are needed."""
        votes = self._votes.get(sites, Counter())
        if votes[True] == votes[False] or max(votes.values()) <= self.repeats // 2:
            return None
        return votes[True] > votes[False]

    def _run(self, sites: frozenset[str]) -> None:
        self.budget.check(num_runs=self.num_runs, began=self._began)
        judgement = Judgement(sites=sites, holds=bool(self.judge(sites)))
        self.num_runs += 1
        self.remember([judgement])
        self.on_run(judgement)
