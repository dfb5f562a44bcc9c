"""Runs tests/watch/supervised.py, whose child crashes, hangs or is killed for real; and makes watches begin fast."""

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "supervised.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the parent ended, what it told, and the folder that is left."""

    code: int
    told: list[dict[str, Any]]
    folder: Path
    errors: str


Supervised = Callable[..., Outcome]


@pytest.fixture(scope="module")
def only_new_objects() -> Iterator[None]:
    """Keep what importing has made out of sight: a watch looks through all objects for optimizers when it begins."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], list[str]]:
    return lambda what: [sys.executable, str(PROGRAM), what, str(tmp_path / "run")]


@pytest.fixture
def supervised(tmp_path: Path, command: Callable[[str], list[str]]) -> Supervised:
    """Run one of the things that can happen to the end; gdb, which takes seconds, only where it is asked for."""

    def run(what: str, *, gdb: bool = False, **settings: str) -> Outcome:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings}
        if not gdb:
            environment["PATH"] = "/nowhere"
        answer = subprocess.run(command(what), env=environment, capture_output=True, text=True, timeout=60)
        told = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
        return Outcome(code=answer.returncode, told=told, folder=tmp_path / "run", errors=answer.stderr)

    return run


@pytest.fixture
def needs_gdb() -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give what the replays of the recorded steps came to, in order, once they have run."""
    from roundoff.watch.respond import Responder

    found: list[Any] = []
    record = Responder.record

    def kept(*args: Any, **kwargs: Any) -> Any:
        found.append(record(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(Responder, "record", kept)
    return found
