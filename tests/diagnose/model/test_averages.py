"""Averages of the weights that are none, by what the watch saw of them; and those that are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.diagnose.model.weight_copies import broken_averages
from roundoff.runs import AveragesProbe, Run, WeightCopy
from tests.diagnose.findings import only
from tests.run_folders import write_run


def seen(folder: Path, **facts: Any) -> Run:
    unmoved: dict[str, Any] = {"copies": (), "scales": (), "num_holders": 0}
    return write_run(folder, AveragesProbe(step=19, parameter="0.weight", moved=0.4, **(unmoved | facts)))


def test_an_average_that_is_the_weights_themselves_is_reported(tmp_path: Path) -> None:
    finding = only(broken_averages, seen(tmp_path / "run", scales=(0.9999,) * 15, num_holders=1))
    assert (finding.rule, finding.parameter) == ("ema-broken", "0.weight")
    assert finding.title == "the average of the weights is the weights themselves"


def test_an_average_that_never_moves_is_reported(tmp_path: Path) -> None:
    finding = only(broken_averages, seen(tmp_path / "run", copies=(WeightCopy(num_writes=30, moved=0.0),)))
    assert finding.title == "the average of the weights never changes"


def test_slow_averages_and_decay_by_hand_are_fine(tmp_path: Path) -> None:
    assert broken_averages(seen(tmp_path / "slow", copies=(WeightCopy(num_writes=30, moved=5e-4),))) == []
    assert broken_averages(seen(tmp_path / "decay", scales=(0.9999,) * 15)) == []
