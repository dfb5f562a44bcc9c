"""A training under a recording, and the run it left."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from roundoff.record import recording
from roundoff.runs import Run

Record = Callable[..., Run]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Run a training inside a recording, into a folder of its own, and open the run it left."""
    numbers = count()

    def record(training: Callable[[], Any], model: Any = None, **options: Any) -> Run:
        folder = tmp_path / f"run-{next(numbers)}"
        with recording(model, to=folder, **options):
            training()
        return Run.open(folder)

    return record
