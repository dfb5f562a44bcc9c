"""A plateau scheduler that waits for its metric to go the wrong way is reported; one that is right to wait is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.loop.plateau_scheduler import inverted_plateau
from roundoff.runs import Metrics, Run
from tests.run_folders import call, calls_by_step, write_run

LOWERED = [0.1, 0.1, 0.01, 0.01, 0.001]
COUNTS = [0.5, 0.62, 0.71, 0.8, 0.84]
SCORES = [0.5123717, 0.6181231, 0.7127391, 0.8012371, 0.8412397]
FALLING = [1.3134, 0.9123, 0.7017, 0.5234, 0.4712]


def run_with(
    folder: Path, metrics: list[float], mode: str, eval_losses: list[float] | None = None, rates: list[float] = LOWERED
) -> Run:
    steps = [
        [call("step", optimizer="SGD"), call("scheduler", metric=metric, improves=mode, lr=[rate])]
        for metric, rate in zip(metrics, rates, strict=True)
    ]
    rows = [Metrics(step=step, eval_loss=loss) for step, loss in enumerate(eval_losses or [])]
    return write_run(folder / "run", calls_by_step(steps), rows)


@pytest.mark.parametrize(
    ("metrics", "eval_losses"),
    [(COUNTS, None), ([100 * x for x in COUNTS], None), (COUNTS, FALLING), (SCORES, FALLING)],
    ids=["accuracy", "percent", "accuracy and loss", "score and loss"],
)
def test_a_score_that_should_fall_is_reported(
    tmp_path: Path, metrics: list[float], eval_losses: list[float] | None
) -> None:
    (finding,) = inverted_plateau(run_with(tmp_path, metrics, "min", eval_losses))
    assert (finding.rule, finding.step) == ("plateau-inverted", 2)
    assert "it lowered the rate 2 times, from 0.1 to 0.001" in finding.why
    assert "mode='max'" in finding.fix


def test_a_loss_that_should_rise_is_reported(tmp_path: Path) -> None:
    (finding,) = inverted_plateau(run_with(tmp_path, FALLING, "max", FALLING))
    assert finding.why.startswith("the scheduler got a loss, which fell from 1.31 to 0.47 in 5 calls")


@pytest.mark.parametrize(
    ("metrics", "mode", "eval_losses", "rates"),
    [
        (COUNTS, "max", FALLING, LOWERED),
        (FALLING, "min", FALLING, LOWERED),
        (FALLING[::-1], "min", FALLING[::-1], LOWERED),
        (SCORES, "min", None, LOWERED),
        (COUNTS, "min", None, [0.1] * 5),
        (FALLING, "max", None, LOWERED),
    ],
    ids=["right", "right loss", "overfitting", "unknown number", "rate stays", "unknown falling number"],
)
def test_others_are_silent(
    tmp_path: Path, metrics: list[float], mode: str, eval_losses: list[float] | None, rates: list[float]
) -> None:
    assert inverted_plateau(run_with(tmp_path, metrics, mode, eval_losses, rates)) == []
