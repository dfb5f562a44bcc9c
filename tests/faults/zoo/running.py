"""Runs any command on the trainings of the zoo, each in a folder of its own, and keeps what it said as JSON lines."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.zoo.catalogue import Expected

SCRIPT = "train.py"
"""What every training is called when it runs, so that no output names the fault by the file's name."""
MOST_CHARACTERS = 60_000
"""Of an output that is kept; of a longer one the first and the last half."""


class ZooError(Exception):
    """The zoo was asked for something it cannot do; the text is for its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended on one training, and all that it said."""

    name: str
    code: int | None
    """Of the rank that ended worst; None after a timeout."""
    output: str
    findings: list[dict[str, Any]] | None = None
    """What the command wrote as findings, if it was said where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a command did on all trainings so far: the content of a results file."""

    about: Mapping[str, Any]
    """The first line: the command, and what else was asked for."""
    by_name: dict[str, Result] = field(default_factory=dict)


def check_command(template: str) -> list[str]:
    """Return the words of a command, with paths from here made absolute: it runs in other folders.

    It must name `{script}` and a program that exists.
    """
    words = shlex.split(template)
    if not any("{script}" in word for word in words):
        raise ZooError(f"The command has no {{script}}: {template!r}. Example: 'mytool run {{script}}'")
    if shutil.which(words[0]) is None:
        raise ZooError(f"There is no program {words[0]!r} to run: {template!r}")
    return [str(Path(word).absolute()) if os.sep in word and Path(word).exists() else word for word in words]


def choose(
    known: Sequence[Expected], *, families: Mapping[str, str], sample: int | None, seed: int, words: Sequence[str] = ()
) -> list[Expected]:
    """Return the trainings whose names hold a word.

    With `sample`, so many faulty ones, spread evenly over the families, and half as many healthy ones, drawn with the
    seed.
    """
    chosen = [entry for entry in known if not words or any(word in entry.name for word in words)]
    if words and not chosen:
        raise ZooError(f"No training has a name with {' or '.join(map(repr, words))} in it")
    if sample is None:
        return chosen
    chance = random.Random(seed)
    piles: dict[str, list[Expected]] = {}
    for entry in chosen:
        piles.setdefault("" if entry.rule is None else families[entry.rule], []).append(entry)
    for pile in piles.values():
        chance.shuffle(pile)
    healthy = piles.pop("", [])[: (sample + 1) // 2]
    longest = max((len(pile) for pile in piles.values()), default=0)
    in_turn = [pile[place] for place in range(longest) for pile in piles.values() if place < len(pile)]
    return [*in_turn[:sample], *healthy]


def read_results(path: Path) -> Results:
    """Read a results file; a last line that was cut off is left out."""
    about, *lines = path.read_text().splitlines()
    results = Results(about=json.loads(about))
    for line in lines:
        try:
            result = Result(**json.loads(line))
        except json.JSONDecodeError:
            continue
        results.by_name[result.name] = result
    return results


def run_all(
    chosen: Sequence[Expected],
    *,
    command: str,
    to: Path,
    about: Mapping[str, Any],
    findings: str | None = None,
    workers: int = 1,
    timeout_seconds: float = 120.0,
) -> Iterator[Result]:
    """Run a command on every training that `to` does not hold yet; yield each result when it is written there."""
    words = check_command(command)
    if to.exists() and to.stat().st_size:
        before = read_results(to)
        if before.about["command"] != command:
            raise ZooError(f"{to} holds the results of another command: {before.about['command']!r}")
        done = set(before.by_name)
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps({"command": command, **about}) + "\n")
        done = set()
    left = [entry for entry in chosen if entry.title not in done]
    writing = threading.Lock()

    def work(entry: Expected) -> Result:
        result = run_one(words, entry, findings=findings, timeout_seconds=timeout_seconds)
        with writing, to.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        return result

    with ThreadPoolExecutor(max(1, workers)) as pool:
        yield from pool.map(work, left)


def run_one(words: Sequence[str], entry: Expected, *, findings: str | None, timeout_seconds: float) -> Result:
    """Run a command on one training in a new folder, as many times at once as it has ranks."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as name:
        folder = Path(name)
        shutil.copyfile(entry.script, folder / SCRIPT)
        filled = [
            part
            for word in words
            for part in (entry.options if word == "{options}" else [word.replace("{script}", SCRIPT)])
        ]
        codes = _run_ranks(filled, folder, ranks=entry.ranks, timeout_seconds=timeout_seconds)
        output = "".join((folder / f"output-{rank}").read_text(errors="replace") for rank in range(entry.ranks))
        if len(output) > MOST_CHARACTERS:
            output = f"{output[: MOST_CHARACTERS // 2]}\n...\n{output[-MOST_CHARACTERS // 2 :]}"
        return Result(
            name=entry.title,
            code=None if None in codes else max((code or 0 for code in codes), key=abs),
            output=output.replace(f"{folder}{os.sep}", ""),
            findings=_findings(folder, findings) if findings else None,
        )


def _run_ranks(words: Sequence[str], folder: Path, *, ranks: int, timeout_seconds: float) -> list[int | None]:
    """Return the exit code of each rank; None of one that had to be killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    if ranks > 1:
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(_free_port())}
        environment |= {**address, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    processes = []
    for rank in range(ranks):
        mine = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else environment
        with (folder / f"output-{rank}").open("wb") as output:
            processes.append(
                subprocess.Popen(
                    words,
                    cwd=folder,
                    env=mine,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    deadline = time.monotonic() + timeout_seconds
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return codes


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


def _findings(folder: Path, pattern: str) -> list[dict[str, Any]] | None:
    """Return what the command wrote as findings: a list of objects, or an object that has one as `findings`."""
    for path in sorted(folder.glob(pattern)):
        try:
            content = json.loads(path.read_text())
        except ValueError:
            continue
        found: list[dict[str, Any]] = content["findings"] if isinstance(content, dict) else content
        return found
    return None
