"""What reaches TensorBoard, read by TensorBoard's own reader."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from roundoff.errors import UsageError
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import Metrics


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Return a function that opens what was written."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def opened() -> Any:
        board = accumulator.EventAccumulator(str(tmp_path))
        board.Reload()
        return board

    return opened


def test_what_was_not_measured_is_left_out_and_nan_is_shown(tmp_path: Path, read: Any) -> None:
    board = TensorBoard(tmp_path)
    board.metrics(Metrics(step=0, loss=2.0, lr=0.1))
    board.metrics(Metrics(step=1, loss=math.nan, loss_scale=1024.0, skipped=True))
    board.close()
    seen = read()
    assert sorted(seen.Tags()["scalars"]) == ["loss", "loss_scale", "lr", "skipped"]
    first, second = (event.value for event in seen.Scalars("loss"))
    assert first == 2.0
    assert math.isnan(second)
    assert [event.value for event in seen.Scalars("skipped")] == [0.0, 1.0]


def test_histograms_are_of_what_is_finite(tmp_path: Path, read: Any) -> None:
    board = TensorBoard(tmp_path)
    values = torch.tensor([[1.0, 2.0], [math.inf, math.nan]], dtype=torch.float16)
    board.histograms(3, {"half": values, "all bad": torch.tensor([math.nan]), "empty": torch.empty(0)})
    board.close()
    seen = read()
    assert seen.Tags()["histograms"] == ["half"]
    (event,) = seen.Histograms("half")
    drawn = event.histogram_value
    assert (event.step, drawn.num, drawn.min, drawn.max) == (3, 2.0, 1.0, 2.0)


def test_without_tensorboard_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'roundoff\[tensorboard\]'"):
        TensorBoard(tmp_path)
