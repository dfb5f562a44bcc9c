"""Scores any tool on the faulty and the healthy trainings of this folder; README.md has examples.

python -m tests.faults.zoo run --command 'mytool run {script}' --to mytool.jsonl
python -m tests.faults.zoo score mytool.jsonl --bare python.jsonl
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.zoo.catalogue import expectations, healthy_trainings
from tests.faults.zoo.running import ZooError, choose, read_results, run_all
from tests.faults.zoo.scoring import causes
from tests.faults.zoo.table import judge_all, table_of


def main(arguments: Sequence[str]) -> int:
    """Run or score, and return the exit code: 2 after a request that cannot be met."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options) if options.what == "run" else _score(options)
    except (ZooError, FileNotFoundError) as error:
        print(f"zoo: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests.faults.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = parser.add_subparsers(dest="what", required=True)
    run = tasks.add_parser("run", help="run a command on the trainings, and keep what it said")
    run.add_argument("--command", required=True, help="with {script}; {options} becomes what roundoff needs for a few")
    run.add_argument("--to", type=Path, required=True, help="results as JSON lines; what is in it is not run again")
    run.add_argument("--name", help="of the tool in tables; else the name of the file")
    run.add_argument("--findings", metavar="GLOB", help="where in its folder the command writes findings as JSON")
    run.add_argument("--ignore", action="append", default=[], metavar="REGEX", help="lines that say nothing is wrong")
    run.add_argument("--sample", type=int, help="so many faulty trainings, over all families, and half as many healthy")
    run.add_argument("--seed", type=int, default=0, help="of the sample")
    run.add_argument("--workers", type=int, default=1)
    run.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for each training")
    run.add_argument("words", nargs="*", metavar="PART OF A NAME")
    score = tasks.add_parser("score", help="judge what was said, and print the table")
    score.add_argument("results", nargs="+", type=Path)
    score.add_argument("--bare", type=Path, help="results of the bare script: lines it prints itself are not said")
    return parser


def _run(options: argparse.Namespace) -> int:
    for pattern in options.ignore:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ZooError(f"--ignore {pattern!r} is not a regular expression: {error}") from error
    if options.timeout <= 0 or options.workers < 1 or (options.sample is not None and options.sample < 1):
        raise ZooError("--timeout, --workers and --sample must be positive")
    families = {code: cause.family for code, cause in causes().items()}
    known = [*expectations(), *healthy_trainings()]
    chosen = choose(known, families=families, sample=options.sample, seed=options.seed, words=options.words)
    about = {
        "name": options.name or options.to.stem,
        "ignore": options.ignore,
        "findings": options.findings,
        "sample": options.sample,
        "seed": options.seed,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }
    for result in run_all(
        chosen,
        command=options.command,
        to=options.to,
        about=about,
        findings=options.findings,
        workers=options.workers,
        timeout_seconds=options.timeout,
    ):
        ended = "timeout" if result.code is None else f"exit code {result.code}"
        print(f"{result.name:45} {ended}, {len(result.output.splitlines())} lines", flush=True)
    return 0


def _score(options: argparse.Namespace) -> int:
    bare = None if options.bare is None else read_results(options.bare)
    judged = [judge_all(read_results(path), bare=bare) for path in options.results]
    print(table_of([row for rows in judged for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
