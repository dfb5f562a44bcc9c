"""Backwards that are not derivatives, by what a walk along the gradient gives; and those that are meant so."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.model.backward import wrong_backwards
from roundoff.runs import DirectionProbe, Run, SlopeOfParameter
from tests.diagnose.findings import only
from tests.run_folders import write_run


def walked(folder: Path, ratio: float, further: float, functions: tuple[str, ...] = ("Cube",)) -> Run:
    by_site = (
        SlopeOfParameter(site="first", parameter="first.weight", ratio=ratio, ratio_further=further),
        SlopeOfParameter(site="head", parameter="head.weight", ratio=1.0, ratio_further=1.0),
    )
    probe = DirectionProbe(step=9, expected=1.0, measured=0.9, ratio=0.9, functions=functions, by_site=by_site)
    return write_run(folder, probe)


def test_the_function_is_named_with_the_ratio(tmp_path: Path) -> None:
    finding = only(wrong_backwards, walked(tmp_path / "run", 0.667, 0.667))
    assert (finding.rule, finding.step, finding.parameter) == ("wrong-backward", 9, "first.weight")
    assert "Cube" in finding.title
    assert "0.67 times as much" in finding.why


@pytest.mark.parametrize(
    ("ratio", "further", "functions"),
    [
        (1.01, 1.01, ("Cube",)),  # right
        (0.0, 0.0, ("Rounded",)),  # rounding has no slope
        (0.7, 1.3, ("Rounded",)),  # it jumps
        (-1.0, -1.0, ("Reversed",)),  # a gradient that is reversed on purpose
        (0.5, 0.5, ()),  # a gradient that is stopped on purpose: no own function
    ],
)
def test_gradients_that_are_right_or_meant_so_are_fine(
    ratio: float, further: float, functions: tuple[str, ...], tmp_path: Path
) -> None:
    assert wrong_backwards(walked(tmp_path / "run", ratio, further, functions)) == []
