"""Losses out of logs as people print them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from roundoff.compare.curves.curve_files import read_log
from roundoff.errors import CompareError


def points_in(tmp_path: Path, text: str, *, pattern: str | None = None) -> list[tuple[int, float]]:
    path = tmp_path / "train.log"
    path.write_text(text)
    curve = read_log(path, pattern=pattern)
    return list(zip(curve.steps, curve.values, strict=True))


@pytest.mark.parametrize(
    ("line", "point"),
    [
        ("step 12 loss 2.31", (12, 2.31)),
        ("[step=12] train_loss=2.31 val_loss=9", (12, 2.31)),
        ("Epoch 3 [120/600] Loss: 0.43", (1920, 0.43)),
        ("Train Epoch: 1 [1280/60000 (2%)]\tLoss: 0.893", (61280, 0.893)),
        ("Epoch: [3][ 10/391]  Time 0.1 (0.2)  Loss 1.2e+00 (1.3)", (1183, 1.2)),
        ("iter 40: loss=1.2e-3 lr=1e-4", (40, 1.2e-3)),
        ("epoch 3/10 train loss: 0.5, val loss: 0.6", (3, 0.5)),
        ("iteration      100/  500000 | consumed samples: 1 | lm loss: 1.048E+01 |", (100, 10.48)),
        (" 45%|####    | 45/100 [00:01<00:01, 30.1it/s, loss=0.43]", (45, 0.43)),
        ("{'loss': 2.31, 'learning_rate': 1e-05, 'epoch': 0.1}", (0, 2.31)),
        ("\x1b[32mstep 7\x1b[0m loss -inf", (7, -math.inf)),
        ("2026-01-02 10:00:01,234 INFO Step 7 | Loss: .5", (7, 0.5)),
    ],
)
def test_step_and_loss_are_found_in_a_line(tmp_path: Path, line: str, point: tuple[int, float]) -> None:
    assert points_in(tmp_path, f"starting up\n{line}\ndone\n") == [point]


def test_a_loss_that_is_not_a_number_is_kept(tmp_path: Path) -> None:
    ((step, loss),) = points_in(tmp_path, "step 3 loss nan\n")
    assert step == 3
    assert math.isnan(loss)


def test_lines_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    text = "step 1 loss 2.5\nstep 1 val loss 9\nstep 1 eval_loss 9\nvalidation/loss 9\nstep 2 loss 2.25\n"
    assert points_in(tmp_path, text) == [(1, 2.5), (2, 2.25)]


def test_what_a_progress_bar_wrote_over_itself_is_read(tmp_path: Path) -> None:
    assert points_in(tmp_path, "1/3 [loss=2.5]\r2/3 [loss=2.25]\r3/3 [loss=2]\n") == [(1, 2.5), (2, 2.25), (3, 2.0)]


def test_a_line_that_sums_up_is_not_a_step(tmp_path: Path) -> None:
    assert points_in(tmp_path, "step 1 loss 2.5\nstep 2 loss 2.25\nbest loss 2.25\n") == [(1, 2.5), (2, 2.25)]


def test_a_pattern_says_where_step_and_loss_are(tmp_path: Path) -> None:
    text = "it 5 val 9 train 2.5\nit 6 val 9 train 2.25\n"
    assert points_in(tmp_path, text, pattern=r"it (?P<step>\d+) .* train (?P<loss>\S+)") == [(5, 2.5), (6, 2.25)]
    assert points_in(tmp_path, text, pattern=r"train (?P<loss>\S+)") == [(0, 2.5), (1, 2.25)]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"it (?P<step>\d+)", "has no group named loss"),
        (r"it (", "is not a regular expression"),
        (r"nothing (?P<loss>\S+)", "the pattern fits none of its lines; one of them is: it 5 train 2.5"),
        (r"(?P<loss>train)", "loss is 'train' in: it 5 train 2.5"),
    ],
)
def test_of_a_pattern_that_does_not_fit_it_is_said_why(tmp_path: Path, pattern: str, said: str) -> None:
    with pytest.raises(CompareError) as caught:
        points_in(tmp_path, "it 5 train 2.5\n", pattern=pattern)
    assert said in str(caught.value)
