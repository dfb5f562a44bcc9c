"""Clipping after the step is reported where it would have clipped, and nowhere else."""

from pathlib import Path

import pytest

from roundoff.diagnose.loop.late_clipping import late_clipping
from roundoff.runs import Call, ClipDetail, Finding, Structure
from tests.run_folders import call, calls_by_step, write_run


def clip(*, norm: float = 5.0, limit: float = 1.0) -> Call:
    return call("clip", ClipDetail(max_norm=limit, total_norm=norm))


def found(tmp_path: Path, *order: Call) -> list[Finding]:
    steps = calls_by_step([list(order)] * 3)
    return late_clipping(write_run(tmp_path / "run", steps, Structure(step=0)))
