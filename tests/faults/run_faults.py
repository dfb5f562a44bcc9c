"""The fault suite: small trainings that really go wrong, run as a user would, and judged by what is found in them.

As a program it prints the score: `python -m tests.faults.run_faults [--seeds 5] [PART OF A NAME]...`. The healthy
trainings in healthy/ set no seed of their own, and run once with each of `--seeds` seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from roundoff.runs import Finding, Run, Severity
from tests.watch.script_server import Ended, ScriptServer

NUM_AT_A_TIME = 2
FOLDER = Path(__file__).parent


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

    def is_met_by(self, finding: Finding) -> bool:
        """Say whether a finding has the rule and the place."""
        is_there = all(str(getattr(finding, name)) == str(value) for name, value in self._place.items())
        text = f"{finding.title}\n{finding.why}\n{finding.fix}"
        is_related = self.related is None or self.related in [related.rule for related in finding.related]
        return is_there and is_related and all(words in text for words in self.says)

    def judge(self, findings: Sequence[Finding]) -> Score:
        """Say how good an answer the findings are."""
        if self.healthy:
            is_quiet = all(finding.severity is Severity.NOTE for finding in findings)
            return Score.SILENT if is_quiet else Score.FALSE_ALARM
        if findings and self.is_met_by(findings[0]):
            return Score.RIGHT
        return Score.AMONG_THREE if self.rule in [finding.rule for finding in findings[:3]] else Score.MISSED


def expectations() -> list[Expected]:
    """Return what is expected of every script, in the order of expected.toml."""
    tables = tomllib.loads((FOLDER / "expected.toml").read_text())
    return [Expected(name=name, **table) for name, table in tables.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """How a watched script ended, and what was found in it; None if it left no diagnosis."""

    expected: Expected
    ended: Ended
    findings: list[Finding] | None

    @property
    def score(self) -> Score:
        """Say how good the diagnosis is."""
        return Score.FAILED if self.findings is None else self.expected.judge(self.findings)

    @property
    def is_right(self) -> bool:
        """Say whether the fault was named, or a healthy run left alone."""
        return self.score in (Score.RIGHT, Score.SILENT)

    def __str__(self) -> str:
        """What was expected, and what was found instead."""
        lines = [f"{self.expected.title}: {self.score}", f"  expected: {self.expected.text}"]
        for finding in (self.findings or [])[:3]:
            place = (
                f"step {finding.step}, {finding.site} / {finding.op}, parameter {finding.parameter}, {finding.source}"
            )
            lines += [
                f"  found:    {finding.severity} {finding.rule} at {place}",
                f"            {finding.title}: {finding.why}",
            ]
        if not self.findings:
            lines.append(
                "  found:    nothing"
                if self.findings is not None
                else f"  the script left no diagnosis:\n{self.ended.stderr}"
            )
        return "\n".join(lines)


def diagnose_script(expected: Expected, server: ScriptServer, folder: Path) -> Diagnosed:
    """Run a script under `roundoff run` and return what was found."""
    seed = [] if expected.seed is None else ["--seed", str(expected.seed)]
    options = ["--name", "run", *seed, *expected.options]
    ended = server.run([expected.script, "weights.pt"], folder=folder, watched=options, ranks=expected.ranks)
    run = folder / "runs" / "run"
    findings = Run.open(run).findings() if (run / "run.json").exists() else None
    return Diagnosed(expected=expected, ended=ended, findings=findings)


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


def score(chosen: Sequence[Expected]) -> dict[str, Score]:
    """Run the scripts, two at a time, and print the result of each as it ends."""
    scores: dict[str, Score] = {}
    waiting = iter(chosen)
    taking = threading.Lock()

    def work(folder: Path) -> None:
        with ScriptServer() as server:
            while True:
                with taking:
                    expected = next(waiting, None)
                if expected is None:
                    return
                diagnosed = diagnose_script(expected, server, folder / expected.title)
                with taking:
                    scores[expected.title] = diagnosed.score
                    print(f"{expected.title:40} {diagnosed.score}" if diagnosed.is_right else diagnosed, flush=True)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(NUM_AT_A_TIME) as workers:
        for work_done in [workers.submit(work, Path(folder)) for _ in range(min(NUM_AT_A_TIME, len(chosen)))]:
            work_done.result()
    return scores


def main(arguments: Sequence[str]) -> int:
    """Print the score of all scripts, or of those whose names hold one of the words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how often each healthy training runs")
    parser.add_argument("words", nargs="*", metavar="PART OF A NAME")
    options = parser.parse_args(arguments)
    known = [*expectations(), *healthy_kinds(), *healthy_trainings(num_seeds=options.seeds)]
    chosen = [entry for entry in known if not options.words or any(word in entry.name for word in options.words)]
    scores = score(chosen)
    halves = (
        ("plants the rules were written with", lambda entry: not entry.healthy and not entry.held_out),
        ("plants written after the rules", lambda entry: not entry.healthy and entry.held_out),
        ("healthy runs", lambda entry: entry.healthy),
    )
    for title, belongs in halves:
        results = [scores[entry.title] for entry in chosen if belongs(entry)]
        counts = ", ".join(f"{results.count(kind)} {kind}" for kind in Score if kind in results)
        print(f"{title}: {counts or 'none'}")
    bad = [entry.title for entry in chosen if scores[entry.title] not in (Score.RIGHT, Score.SILENT)]
    print("not as expected:", ", ".join(bad) or "none")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
