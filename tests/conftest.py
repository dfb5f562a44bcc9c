"""What tests of all rooms share: a server that runs scripts, and which files pytest must not import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch.script_server import ScriptServer

_TESTS = Path(__file__).parent
collect_ignore = [  # scripts that train: looking for doctests in them would run them
    str(_TESTS / "watch" / "supervised.py"),
    *(str(path) for path in (_TESTS / "experiments").rglob("planted_*.py")),
    *(str(path) for path in (_TESTS / "watch" / "kinds").glob("*.py")),
    *(str(path) for path in (_TESTS / "flows" / "plans").glob("*.py")),
    *(str(path) for path in (_TESTS / "faults").rglob("*.py") if not path.name.startswith("test_")),
]


@pytest.fixture(scope="session")
def server() -> Iterator[ScriptServer]:
    """Run scripts in forks of one process that has torch loaded."""
    with ScriptServer() as server:
        yield server
