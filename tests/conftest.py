"""What tests of all rooms share: which of them are slow, and a script server."""

from __future__ import annotations

import errno
import functools
import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.json_schemas import checking_json
from tests.watch.script_server import ScriptServer

_TESTS = Path(__file__).parent
SLOW = (
    "browser",
    "device",
    "docs",
    "examples",
    "experiments/engine",
    "faults",
    "flows",
    "watch/process",
    "watch/test_accelerate.py",
    "watch/test_huggingface.py",
    "watch/test_lightning.py",
    "watch/test_recipes.py",
    "**/test_kinds*.py",
    "**/test_planted_*.py",
    "**/test_ranks.py",
)
"""Whole folders and files that train in other processes, open a browser or load another framework."""
MAX_FAST_CASES = 8
"""Of a test in a folder with more cases than this, only this many are fast, evenly spread."""


def _is_slow(path: Path) -> bool:
    return any(part.match(pattern) for part in (path, *path.parents) for pattern in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make test-fast` leaves out."""
    return True if config.option.markexpr == "not slow" and _is_slow(collection_path.relative_to(_TESTS)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow ones as such, and most cases of tests that have many."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.path.is_relative_to(_TESTS):
            continue
        if _is_slow(item.path.relative_to(_TESTS)):
            item.add_marker("slow")
        elif item.path.parent != _TESTS:
            cases[item.nodeid.partition("[")[0]].append(item)
    for similar in cases.values():
        for place, item in enumerate(similar):
            if place and place * MAX_FAST_CASES // len(similar) == (place - 1) * MAX_FAST_CASES // len(similar):
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def texts_as_wide_as_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width that a library may have left in the environment: what commands print would be broken at it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def commands_keep_to_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check all JSON that a test gets from a command against the schema that `roundoff schema` prints."""
    monkeypatch.setattr(CliRunner, "invoke", checking_json(CliRunner.invoke))


@pytest.fixture(scope="session")
def server() -> Iterator[ScriptServer]:
    """Run scripts in forks of one process that has torch loaded."""
    with ScriptServer() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def only_new_objects() -> None:
    """Keep what all test files have made out of sight: a watch looks through all objects for optimizers as it begins.

    Collecting garbage among a million objects takes half a second, in the middle of what a test measures.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["compiled", "torch"])
def either_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once with the compiled kernels and once with their torch versions."""
    from roundoff.kernels.compiled import compiled_kernels

    if request.param == "torch":
        monkeypatch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
    elif compiled_kernels() is None:
        pytest.skip("the compiled kernels are not built")
    return str(request.param)


@pytest.fixture
def fill_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let every write to a file of the test whose path holds a text fail, as on a full disk."""

    def fill(text: str) -> None:
        for name in ("write", "pwrite"):
            monkeypatch.setattr(os, name, functools.partial(_write_or_fail, getattr(os, name), str(tmp_path), text))

    return fill


@pytest.fixture
def full_disk(fill_disk: Callable[[str], None]) -> None:
    """Let every write to a file of the test fail."""
    fill_disk("")


def _write_or_fail(write: Callable[..., int], folder: str, text: str, descriptor: int, *arguments: object) -> int:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.startswith(folder) and text in path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(descriptor, *arguments)
