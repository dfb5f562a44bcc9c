"""Scores any tool on the faulty and the healthy trainings of this folder; README.md has examples.

python -m tests.faults.zoo run --command 'mytool run {script}' --to mytool.jsonl
python -m tests.faults.zoo score mytool.jsonl --bare python.jsonl
python -m tests.faults.zoo keep python.jsonl mytool.jsonl --bare python.jsonl --guises guises.jsonl
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.zoo.catalogue import expectations, healthy_trainings
from tests.faults.zoo.running import ZooError, choose, read_results, run_all
from tests.faults.zoo.scoring import causes
from tests.faults.zoo.table import judge_all, table_of

KEPT = Path(__file__).parent / "results.json"
PACKAGES = ("roundoff", "torch", "transformers", "accelerate", "lightning")


def main(arguments: Sequence[str]) -> int:
    """Run or score, and return the exit code: 2 after a request that cannot be met."""
    options = _parser().parse_args(arguments)
    try:
        tasks = {"run": _run, "score": _score, "keep": _keep}
        return tasks[options.what](options)
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
    keep = tasks.add_parser("keep", help="judge what was said, and keep the answers for the page in docs/")
    for task in (score, keep):
        task.add_argument("results", nargs="+", type=Path)
        task.add_argument("--bare", type=Path, help="results of the bare script: lines it prints itself are not said")
    keep.add_argument("--guises", type=Path, required=True, help="what tests.faults.run_guises --to wrote")
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


def _keep(options: argparse.Namespace) -> int:
    bare = None if options.bare is None else read_results(options.bare)
    read = [read_results(path) for path in options.results]
    rows = [row for results in read for row in judge_all(results, bare=bare)]
    known = [*expectations(), *healthy_trainings()]
    from tests.faults.run_guises import count_fits  # it needs roundoff

    with tempfile.TemporaryDirectory() as folder:
        fits = count_fits(Path(folder))
    content = {
        "date": read[0].about["date"],
        "sample": read[0].about["sample"],
        "seed": read[0].about["seed"],
        "versions": {name: _version(name) for name in PACKAGES},
        "num_faulty": sum(not entry.healthy for entry in known),
        "num_healthy": sum(entry.healthy for entry in known),
        "fits": fits,
        "tools": [asdict(row) for row in rows],
        "guises": [json.loads(line) for line in options.guises.read_text().splitlines()],
    }
    KEPT.write_text(_one_line_each(content))
    return 0


def _version(name: str) -> str:
    return importlib.metadata.version(name)


def _one_line_each(content: dict[str, Any]) -> str:
    """Return JSON with every answer on a line of its own, so that changes can be read."""
    text = json.dumps(content, indent=1)
    return re.sub(r'\{\s+"name"[^{}]*\}', lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
