"""A running watch, and what the replays of recorded steps came to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from roundoff.watch.watch import Watch


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """A watch that records no step and tries nothing at its end."""
    from roundoff.watch.settings import WatchSettings
    from roundoff.watch.watching import start_watching

    watch = start_watching(to=tmp_path / "run", settings=WatchSettings(recorded_steps=(), probe_seconds=0))
    with watch.running():
        yield watch


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give what the replays of the recorded steps came to, in order, once they have run."""
    from roundoff.replay.investigator import Investigator

    found: list[Any] = []
    record = Investigator.record

    def kept(*args: Any, **kwargs: Any) -> Any:
        found.append(record(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(Investigator, "record", kept)
    return found
