"""What tests of all rooms share: a script server, watches that begin fast, and files that pytest must not import."""

from __future__ import annotations

import errno
import functools
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.watch.script_server import ScriptServer

_TESTS = Path(__file__).parent
collect_ignore = [  # scripts that train: looking for doctests in them would run them
    str(_TESTS / "watch" / "process" / "supervised.py"),
    str(_TESTS / "device" / "registered.py"),
    *(str(path) for path in (_TESTS / "experiments").rglob("planted_*.py")),
    *(str(path) for path in (_TESTS / "watch" / "kinds").glob("*.py")),
    *(str(path) for path in (_TESTS / "watch" / "ranks").glob("*.py")),
    *(str(path) for path in (_TESTS / "flows" / "plans").glob("*.py")),
    *(str(path) for path in (_TESTS / "compare" / "resume").glob("*.py") if not path.name.startswith("test_")),
    *(str(path) for path in (_TESTS / "faults").rglob("*.py") if not path.name.startswith("test_")),
    *(str(path) for path in (_TESTS / "compare" / "layouts" / "scripts").glob("*.py")),
]


@pytest.fixture(autouse=True)
def texts_as_wide_as_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width that a library may have left in the environment: what commands print would be broken at it."""
    monkeypatch.delenv("COLUMNS", raising=False)


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
