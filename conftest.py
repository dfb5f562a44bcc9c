"""Which files pytest looks into: those with tests, and source files with examples in their docstrings."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

_SOURCE = Path(__file__).parent / "src"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples only where there are some.

    To look for them pytest imports a file. That takes long for the whole source, and scripts below tests/ would train.
    """
    collectors = yield
    if file_path.is_relative_to(_SOURCE) and b">>>" in file_path.read_bytes():
        return collectors
    return [collector for collector in collectors if not isinstance(collector, DoctestModule)]
