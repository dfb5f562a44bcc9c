"""Clipping after the step is reported where it would have clipped, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.loop.late_clipping import late_clipping
from tests.run_folders import call, calls_by_step, write_run

ZERO, BACKWARD, STEP = call("zero_grad"), call("backward"), call("step", optimizer="SGD")
CLIP = call("clip", max_norm=1.0, total_norm=5.0)


@pytest.mark.parametrize(
    ("order", "is_found"),
    [
        ([ZERO, BACKWARD, STEP, CLIP], True),
        ([BACKWARD, STEP, CLIP, ZERO], True),
        ([ZERO, BACKWARD, CLIP, STEP], False),
        ([ZERO, BACKWARD, CLIP, STEP, CLIP], False),
        ([STEP, ZERO, BACKWARD, CLIP], False),
        ([BACKWARD, STEP, CLIP, call("step", optimizer="SGD#2"), ZERO], False),
        ([BACKWARD, STEP, call("clip", max_norm=float("inf"), total_norm=5.0)], False),
        ([BACKWARD, STEP, call("clip", max_norm=9.0, total_norm=5.0)], False),
    ],
)
def test_only_clipping_that_no_step_uses_is_reported(tmp_path: Path, order: list, is_found: bool) -> None:
    found = late_clipping(write_run(tmp_path / "run", calls_by_step([order] * 3)))
    assert [finding.rule for finding in found] == ["clip-after-step"] * is_found


EARLY = call("clip", max_norm=1.0, total_norm=0.0)


@pytest.mark.parametrize(
    ("order", "is_found"),
    [
        ([ZERO, EARLY, BACKWARD, STEP], True),
        ([EARLY, BACKWARD, STEP, ZERO], True),
        ([CLIP, BACKWARD, STEP], False),
        ([ZERO, BACKWARD, EARLY, STEP], False),
        ([ZERO, BACKWARD, EARLY, BACKWARD, STEP], False),
    ],
    ids=["after zero_grad", "zero_grad last", "gradients of the step before", "all gradients 0", "two backwards"],
)
def test_clipping_before_backward_is_reported(tmp_path: Path, order: list, is_found: bool) -> None:
    found = late_clipping(write_run(tmp_path / "run", calls_by_step([order] * 3)))
    assert [finding.rule for finding in found] == ["clip-before-backward"] * is_found


def test_the_norms_are_named(tmp_path: Path) -> None:
    (found,) = late_clipping(write_run(tmp_path / "run", calls_by_step([[ZERO, BACKWARD, STEP, CLIP]] * 3)))
    assert (
        "in 3 steps the gradients were clipped only after the optimizer had stepped (in step 0 from 5 to 1)"
        in found.why
    )
