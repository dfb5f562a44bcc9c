"""What is written down about the surroundings of a training, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record import recording
from roundoff.record.process_info import FLAGS, numeric_environment
from roundoff.runs import Run
from roundoff.watch.watching import watching


def test_every_switch_of_torch_can_be_read_here() -> None:
    assert set(FLAGS) <= set(numeric_environment())


def test_only_variables_of_the_list_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_SECRET", "hunter2")
    monkeypatch.setenv("API_TOKEN", "hunter2")
    monkeypatch.delenv("MKL_CBWR", raising=False)
    found = numeric_environment()
    assert found["NCCL_ALGO"] == "Ring"
    assert "MKL_CBWR" not in found
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("observing", [recording, watching])
def test_switches_count_as_they_are_when_the_first_step_begins(tmp_path: Path, observing) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with observing(model, to=tmp_path / "run"):
            torch.manual_seed(1234)
            torch.set_float32_matmul_precision("high")
            for _ in range(2):
                model(torch.ones(3, 2)).sum().backward()
                optimizer.step()
                torch.manual_seed(99)
    finally:
        torch.set_float32_matmul_precision("highest")
    environment = Run.open(tmp_path / "run").info.environment
    assert environment["torch.seed"] == 1234
    assert environment["torch.float32_matmul_precision"] == "high"
