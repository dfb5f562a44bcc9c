"""Runs supervised.py, whose child crashes, hangs or is killed for real."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "supervised.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentOutcome:
    """How the parent ended, what it reported, and the folder that is left."""

    code: int
    reported: list[dict[str, Any]]
    folder: Path
    errors: str


Supervised = Callable[..., ParentOutcome]


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], list[str]]:
    return lambda what: [sys.executable, str(PROGRAM), what, str(tmp_path / "run")]


@pytest.fixture
def supervised(tmp_path: Path, command: Callable[[str], list[str]]) -> Supervised:
    """Run one of the things that can happen to the end; gdb, which takes seconds, only where it is requested."""

    def run(what: str, *, gdb: bool = False, **settings: str) -> ParentOutcome:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings}
        if not gdb:
            environment["PATH"] = "/nowhere"
        answer = subprocess.run(command(what), env=environment, capture_output=True, text=True, timeout=60)
        reported = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
        return ParentOutcome(code=answer.returncode, reported=reported, folder=tmp_path / "run", errors=answer.stderr)

    return run


@pytest.fixture
def needs_gdb() -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
