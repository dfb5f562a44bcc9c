"""Gradients that a scaler multiplied are reported when they are clipped or stepped on; unscaled ones are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.loop.gradients import scaled_gradients
from roundoff.runs import Finding, Metrics
from tests.run_folders import LoopCall, call, calls_by_step, write_run

SCALED = call("backward", is_scaled=True)
PLAIN = call("backward")
UNSCALE = call("unscale")
CLIP = call("clip", max_norm=1.0, total_norm=2048.0)
STEP = call("step", optimizer="SGD")
BY_SCALER = call("step", optimizer="SGD", by_scaler=True)


def found(folder: Path, calls: list[LoopCall], *, scale: float = 1024.0) -> list[Finding]:
    metrics = [Metrics(step=step, loss_scale=scale, grad_norm=2048.0) for step in range(3)]
    return scaled_gradients(write_run(folder / "run", calls_by_step([calls] * 3), metrics))


def test_a_step_without_the_scaler_names_the_factor(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, [SCALED, STEP])
    assert (finding.rule, finding.step) == ("step-on-scaled-gradients", 0)
    assert finding.why == (
        "the loss was multiplied by 1024 before backward, and SGD stepped without the scaler: its gradients are 1024 "
        "times too large (norm 2e3 instead of 2); this happened in 3 steps since step 0"
    )


def test_clipping_before_the_scaler_steps_says_what_is_left(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, [SCALED, CLIP, UNSCALE, BY_SCALER])
    assert (finding.rule, finding.step) == ("clip-before-unscale", 0)
    assert finding.why == (
        "clipping was applied to gradients still multiplied by the loss scale 1024: their norm was 2e3, or 2 unscaled; "
        "clipping to 1 and then unscaling leaves 0.00098; this happened in 3 steps since step 0"
    )


@pytest.mark.parametrize(
    "calls",
    [
        [SCALED, UNSCALE, CLIP, BY_SCALER],
        [SCALED, UNSCALE, STEP],
        [SCALED, BY_SCALER],
        [SCALED, call("step", optimizer="SGD", skipped=True)],
        [PLAIN, CLIP, STEP],
        [SCALED, PLAIN, call("step", optimizer="Adam")],
    ],
    ids=["unscaled first", "unscaled by hand", "fused", "skipped", "no scaler", "another loss"],
)
def test_unscaled_gradients_are_silent(calls: list[LoopCall], tmp_path: Path) -> None:
    assert found(tmp_path, calls) == []


def test_a_scale_of_one_is_silent(tmp_path: Path) -> None:
    assert found(tmp_path, [SCALED, STEP], scale=1.0) == []
