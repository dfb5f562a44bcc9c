"""A running sum that no longer grows is reported, in a model more gravely than in the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.numbers.stagnant_sums import stagnant_sums
from roundoff.runs import AveragesProbe, LostNumbers, Severity, WeightCopy
from tests.run_folders import write_run


@pytest.mark.parametrize(("site", "severity"), [("norm", Severity.ERROR), ("<loop>", Severity.WARNING)])
def test_a_sum_that_stands_still_is_reported(tmp_path: Path, site: str, severity: Severity) -> None:
    lost = LostNumbers(
        step=7, kind="stagnant", function="add_", site=site, dtype="bfloat16", given=(256.0, 1.0), exact=257.0,
        result=256.0, num_lost=1, num_elements=1,
    )  # fmt: skip
    (finding,) = stagnant_sums(write_run(tmp_path / "run", lost))
    assert (finding.rule, finding.severity, finding.step) == ("sum-stands-still", severity, 7)
    assert "1 was added to 256 in bf16, and the sum stayed 256" in finding.why


def test_other_lost_numbers_are_of_another_rule(tmp_path: Path) -> None:
    lost = LostNumbers(step=7, kind="rounded", function="to", site="<loop>")
    assert stagnant_sums(write_run(tmp_path / "run", lost)) == []


@pytest.mark.parametrize(
    ("dtype", "share", "num_found"), [("bfloat16", 0.93, 1), ("bfloat16", 0.3, 0), ("float32", None, 0)]
)
def test_an_average_whose_steps_are_rounded_away_is_reported(
    tmp_path: Path, dtype: str, share: float | None, num_found: int
) -> None:
    copy = WeightCopy(num_writes=15, moved=0.1, dtype=dtype, still_share=share)
    probe = AveragesProbe(step=19, parameter="0.weight", moved=2.0, copies=(copy,), scales=(), num_holders=1)
    findings = stagnant_sums(write_run(tmp_path / "run", probe))
    assert [finding.rule for finding in findings] == ["sum-stands-still"] * num_found
    assert all("93% of the numbers that differ from the weight's did not change" in one.why for one in findings)
