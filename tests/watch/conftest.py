"""What the replays of recorded steps came to, for the tests of frameworks."""

from typing import Any

import pytest


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
