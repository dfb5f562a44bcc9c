"""Two steps on one backward are reported; two optimizers, closures and gradients by hand are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.loop.step_calls import double_steps
from tests.run_folders import LoopCall, call, calls_by_step, write_run

BACKWARD, CLEAR = call("backward"), call("zero_grad")
STEP, OTHER = call("step", optimizer="Adam"), call("step", optimizer="SGD")


def test_the_second_step_is_named(tmp_path: Path) -> None:
    by_scaler = call("step", optimizer="Adam", by_scaler=True)
    (finding,) = double_steps(write_run(tmp_path / "run", calls_by_step([[CLEAR, BACKWARD, by_scaler], [STEP]] * 4)))
    assert (finding.rule, finding.step) == ("double-step", 1)
    assert finding.why == (
        "Adam stepped twice after one backward (by the scaler and directly), without new gradients in between; this "
        "happened 4 times, first in step 1"
    )


@pytest.mark.parametrize(
    "steps",
    [
        [[CLEAR, BACKWARD, STEP], [OTHER]],
        [[STEP, BACKWARD, BACKWARD]],
        [[STEP]],
        [[BACKWARD, STEP], [CLEAR, STEP]],
    ],
    ids=["two optimizers", "closure", "no backward at all", "cleared in between"],
)
def test_other_loops_are_silent(steps: list[list[LoopCall]], tmp_path: Path) -> None:
    assert double_steps(write_run(tmp_path / "run", calls_by_step(steps * 4))) == []
