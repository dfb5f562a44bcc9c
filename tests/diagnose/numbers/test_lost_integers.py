"""Integers that wrap and positions that are rounded, by what was seen of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.diagnose.numbers.lost_integers import rounded_positions, wrapped_integers
from roundoff.runs import BatchFacts, LostNumbers
from tests.diagnose.findings import only
from tests.run_folders import write_run


def lost(kind: Any, **fields: Any) -> LostNumbers:
    place = {"step": 0, "function": "__rsub__", "site": "<loop>", "source": "train.py:8", "num_lost": 3}
    return LostNumbers(kind=kind, **(place | {"num_elements": 60} | fields))


def test_the_calculation_that_wraps_is_written_out(tmp_path: Path) -> None:
    seen = lost("wrapped", dtype="uint8", given=(5.0, 2.0), exact=-3.0, result=253.0)
    finding = only(wrapped_integers, write_run(tmp_path / "run", seen))
    assert (finding.rule, finding.step, finding.site, finding.source) == (
        "integer-wraparound", 0, "<loop>", "train.py:8",
    )  # fmt: skip
    assert finding.title == "uint8 numbers wrap around in sub"
    assert finding.why == "uint8 holds 0 to 255: 2 - 5 = -3 became 253; 3 of 60 results are wrong"


def test_indices_are_to_be_made_longer(tmp_path: Path) -> None:
    seen = lost("wrapped", function="mul", dtype="int32", given=(6e4, 6e4), exact=3.6e9, result=-694967296.0)
    finding = only(wrapped_integers, write_run(tmp_path / "run", seen))
    assert "60000 * 60000 = 3600000000 became -694967296" in finding.why
    assert "long()" in finding.fix


def test_the_first_position_that_is_lost_is_named(tmp_path: Path) -> None:
    angle = lost("rounded", function="sin", dtype="bfloat16", exact=300.0, result=300.0, is_angle=True)
    counter = lost("rounded", function="to", dtype="bfloat16", exact=257.0, result=256.0, is_counter=True)
    finding = only(rounded_positions, write_run(tmp_path / "both", angle, counter))
    assert "in to, 257, the first position that is lost, becomes 256; 3 of 60" in finding.why
    finding = only(rounded_positions, write_run(tmp_path / "angle", angle))
    assert "sin is taken of numbers up to 300" in finding.why


def test_numbers_that_are_neither_counted_nor_angles_may_be_rounded(tmp_path: Path) -> None:
    seen = lost("rounded", function="to", dtype="bfloat16", exact=999.0, result=1000.0)
    run = write_run(tmp_path / "run", seen, BatchFacts(step=0))
    assert (wrapped_integers(run), rounded_positions(run)) == ([], [])
