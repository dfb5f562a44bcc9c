"""The fault suite: small trainings that really go wrong, run as a user would, and judged by what is found in them.

As a program it prints the score: `python -m tests.faults.run_faults [--seeds 5] [PART OF A NAME]...`. The healthy
trainings in healthy/ set no seed of their own, and run once with each of `--seeds` seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from roundoff.runs import Finding, Run
from tests.faults.zoo.catalogue import Expected, Score, expectations, healthy_kinds, healthy_trainings
from tests.watch.script_server import Ended, ScriptServer

NUM_AT_A_TIME = 2


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
