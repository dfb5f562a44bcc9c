"""Learning rates of 0, too small and too large ones are reported by what the updates did; warm-ups are silent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundoff.diagnose.loop.learning_rate import large_rates, tiny_rates, zero_rates
from roundoff.runs import Call, Interned, Metrics, ParameterColumns, Run, RunInfo, RunWriter, call_detail
from tests.run_folders import call


def trained(folder: Path, *, rates: list[float], losses: list[float], ratio: float = 1e-3, weights: float = 2.0) -> Run:
    """Write a run whose updates have this part of the norm of the weights, and none where the rate is 0."""
    with RunWriter.create(folder / "run", RunInfo()) as writer:
        for step, (lr, loss) in enumerate(zip(rates, losses, strict=True)):
            name, detail = call("step", optimizer="SGD", lr=[lr])
            writer.write(Call(step=step, call=name, detail=call_detail(name, detail)))
            writer.write(Metrics(step=step, loss=loss, lr=lr))
            if step < 20:
                writer.write_parameters(_row(step, weights, ratio * weights if lr else 0.0))
    return Run.open(folder / "run")


def _row(step: int, weights: float, update: float) -> ParameterColumns:
    numbers = {name: np.array([value]) for name, value in (("l2", weights), ("update_l2", update), ("grad_l2", 3.0))}
    share = np.array([0.5])
    return ParameterColumns(
        step=np.array([step], dtype=np.int32),
        parameter=Interned.of(["fc.weight"]),
        site=Interned.of(["fc"]),
        num_elements=np.array([8], dtype=np.int64),
        absmax=share,
        grad_absmax=share,
        grad_zero_share=share,
        grad_subnormal_share=share,
        changed_fraction=share,
        **numbers,
    )


FALLING = [2.0 * 0.97**step for step in range(100)]
NOISY = [2.0 + 0.1 * (step * 7 % 5) for step in range(100)]


def test_a_rate_of_zero_through_the_warm_up_is_reported(tmp_path: Path) -> None:
    run = trained(tmp_path, rates=[0.0] * 30 + [0.1] * 70, losses=NOISY)
    (finding,) = zero_rates(run)
    assert (finding.rule, finding.step) == ("lr-zero", 1)
    assert "up to step 29" in finding.why


def test_a_rate_of_zero_after_the_schedule_is_reported(tmp_path: Path) -> None:
    (finding,) = zero_rates(trained(tmp_path, rates=[0.1] * 60 + [0.0] * 40, losses=FALLING))
    assert (finding.rule, finding.step) == ("lr-zero", 60)


@pytest.mark.parametrize(
    "rates", [[0.0] + [0.1] * 99, [0.1] * 98 + [0.0] * 2, [0.1] * 100], ids=["warm-up", "decay", "constant"]
)
def test_a_zero_at_either_end_is_silent(rates: list[float], tmp_path: Path) -> None:
    assert zero_rates(trained(tmp_path, rates=rates, losses=FALLING)) == []


def test_updates_too_small_to_matter_are_reported_with_their_ratio(tmp_path: Path) -> None:
    (finding,) = tiny_rates(trained(tmp_path, rates=[1e-6] * 100, losses=NOISY, ratio=1e-7))
    assert (finding.rule, finding.step) == ("lr-too-low", 0)
    assert finding.why == (
        "the largest update is 1e-7 of the weights (learning rate 1e-6), so 100 steps move them by 1e-5 of their size; "
        "the gradient norm is 3, but the loss does not fall"
    )


def test_small_updates_are_silent_where_the_rate_rises_or_the_loss_falls(tmp_path: Path) -> None:
    rising = [1e-6 * (step + 1) for step in range(100)]
    assert tiny_rates(trained(tmp_path / "a", rates=rising, losses=NOISY, ratio=1e-7)) == []
    assert tiny_rates(trained(tmp_path / "b", rates=[1e-4] * 100, losses=FALLING, ratio=8e-6)) == []
    assert tiny_rates(trained(tmp_path / "c", rates=[1e-2] * 100, losses=NOISY)) == []


def test_updates_as_large_as_the_weights_are_reported_where_the_loss_is_worse(tmp_path: Path) -> None:
    losses = [1.4, 16.0, 25.0, *[1.9] * 97]
    (finding,) = large_rates(trained(tmp_path, rates=[0.3] * 100, losses=losses, ratio=0.9))
    assert (finding.rule, finding.step) == ("lr-too-high", 0)
    assert finding.why.endswith("the loss rose from 1.4 to 25 and ended at 1.9")


def test_one_large_update_after_many_ordinary_ones_is_that_steps_and_not_the_rates(tmp_path: Path) -> None:
    losses = [*[1.4] * 41, 1000.0, 900.0, *[2.9] * 57]
    run = trained(tmp_path, rates=[0.1] * 100, losses=losses)
    with RunWriter.create(tmp_path / "late", RunInfo()) as writer:
        for metrics in run.metrics():
            writer.write(metrics)
        for step in range(20):
            writer.write_parameters(_row(step, 2.0, 2e-3))
        writer.write_parameters(_row(40, 2.0, 1.9))
    assert large_rates(Run.open(tmp_path / "late")) == []


def test_large_updates_are_silent_where_the_loss_falls(tmp_path: Path) -> None:
    assert large_rates(trained(tmp_path, rates=[0.3] * 100, losses=FALLING, ratio=0.9)) == []
