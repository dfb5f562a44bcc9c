"""The fault suite: little trainings that really go wrong, run as a user would, and judged by what is found in them.

As a program it prints the score: `python tests/faults/run_faults.py [PART OF A NAME]...`.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from roundoff.runs import Finding, Run, Severity

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "watch"))
from script_server import ScriptServer  # noqa: E402


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
    ranks: int = 1
    held_out: bool = False
    """Written after the rule, which was never tuned on it."""
    healthy: bool = False

    @property
    def script(self) -> Path:
        """The training."""
        return FOLDER / f"{self.name}.py"

    def is_met_by(self, finding: Finding) -> bool:
        """Say whether a finding has the rule and the place."""
        places = ("rule", "step", "site", "op", "parameter", "rank", "source", "severity")
        wanted = {place: getattr(self, place) for place in places}
        return all(value is None or str(getattr(finding, place)) == str(value) for place, value in wanted.items())

    def judge(self, findings: Sequence[Finding]) -> Score:
        """Say how good an answer the findings are."""
        if self.healthy:
            is_quiet = all(finding.severity is Severity.NOTE for finding in findings)
            return Score.SILENT if is_quiet else Score.FALSE_ALARM
        if findings and self.is_met_by(findings[0]):
            return Score.RIGHT
        return Score.AMONG_THREE if any(map(self.is_met_by, findings[:3])) else Score.MISSED


def expectations() -> list[Expected]:
    """Return what is expected of every script, in the order of expected.toml."""
    tables = tomllib.loads((FOLDER / "expected.toml").read_text())
    return [Expected(name=name, **table) for name, table in tables.items()]


def findings_in(expected: Expected, server: ScriptServer, folder: Path) -> list[Finding] | None:
    """Run a script under `roundoff run` and return what was found; None if it left no diagnosis."""
    server.run([expected.script], folder=folder, watched=["--name", "run"], ranks=expected.ranks)
    run = folder / "runs" / "run"
    return Run.open(run).findings() if (run / "run.json").exists() else None


def score(chosen: Iterable[Expected]) -> dict[str, Score]:
    """Run the scripts and print one line about each as it ends."""
    scores = {}
    with ScriptServer() as server, tempfile.TemporaryDirectory() as folder:
        for expected in chosen:
            findings = findings_in(expected, server, Path(folder) / expected.name)
            result = Score.FAILED if findings is None else expected.judge(findings)
            scores[expected.name] = result
            print(f"{expected.name:40} {result}", flush=True)
            if result in (Score.AMONG_THREE, Score.MISSED, Score.FALSE_ALARM):
                for finding in (findings or [])[:3]:
                    place = f"step {finding.step}, {finding.site} / {finding.op}, {finding.parameter}"
                    print(f"    {finding.severity} {finding.rule}: {place}\n      {finding.title}: {finding.why}")
    return scores


def main(words: Sequence[str]) -> int:
    """Print the score of all scripts, or of those whose names hold one of the words."""
    known = expectations()
    chosen = [entry for entry in known if not words or any(word in entry.name for word in words)]
    scores = score(chosen)
    for title, held_out in (("plants the rules were written with", False), ("held-out plants and twins", True)):
        results = [scores[entry.name] for entry in chosen if entry.held_out is held_out]
        counts = ", ".join(f"{results.count(kind)} {kind}" for kind in Score if kind in results)
        print(f"{title}: {counts or 'none'}")
    bad = [name for name, result in scores.items() if result not in (Score.RIGHT, Score.SILENT)]
    print("not as expected:", ", ".join(bad) or "none")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
