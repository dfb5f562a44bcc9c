"""A data set whose memory holds other numbers when the next epoch begins was written into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.data.epochs import mutated_datasets
from roundoff.runs import Run
from tests.diagnose.findings import only
from tests.run_folders import epochs, losses, write_run

BEFORE = {"name": "points", "address": 64, "hash": "a", "mean": 0.5, "std": 1.0}


def two_epochs(folder: Path, **changes: Any) -> Run:
    first = epochs(0, num_steps=6, content=[BEFORE])
    both = epochs(6, num_steps=12, content=[{**BEFORE, **changes}])
    second = [call for call in both if call.call == "epoch" or call.step >= 6]
    return write_run(folder, [*first, *second], losses(*[1.0] * 12))


def test_names_the_array_and_how_it_changed(tmp_path: Path) -> None:
    finding = only(mutated_datasets, two_epochs(tmp_path / "run", hash="b", mean=0.4, std=0.8))
    assert (finding.rule, finding.step) == ("dataset-mutated", 6)
    assert "mean 0.5 became 0.4, std 1 became 0.8" in finding.why
    assert finding.title == "the dataset changes while it is read (points)"


@pytest.mark.parametrize(
    "changes",
    [{}, {"hash": "b"}, {"hash": "b", "mean": 0.4, "address": 128}],
    ids=["untouched", "in another order", "made anew"],
)
def test_other_changes_are_meant(changes: dict[str, Any], tmp_path: Path) -> None:
    assert mutated_datasets(two_epochs(tmp_path / "run", **changes)) == []
