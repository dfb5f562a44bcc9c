"""With `stores_data=False` nothing of the user's data is written, not even after an anomaly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from roundoff.cli import command_line
from roundoff.runs import Run
from roundoff.watch.watching import watching

MARK = 12345.678
"""A value that occurs in the batches and nowhere else."""


def train(folder: Path, *, stores_data: bool) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with watching(to=folder, stores_data=stores_data) as watch:
        for step in range(4):
            x = torch.full((5, 6), MARK)
            x[2, 3] = float("nan") if step == 2 else MARK
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        watch.verdict()
    return Run.open(folder)


def holds_mark(folder: Path) -> bool:
    mark = np.array([MARK, MARK], np.float32).tobytes()
    return any(mark in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_no_file_holds_a_batch(tmp_path: Path):
    assert holds_mark(train(tmp_path / "kept", stores_data=True).path)
    run = train(tmp_path / "a", stores_data=False)
    assert not holds_mark(run.path)
    assert run.replayed_steps == [2]
    assert list(run.path.rglob("*.safetensors")) == []
    assert list(run.path.rglob("tape-*.json")) == []


def test_the_fault_is_named_all_the_same_and_a_later_replay_is_refused_with_the_reason(tmp_path: Path):
    run = train(tmp_path / "a", stores_data=False)
    diagnosed = CliRunner().invoke(command_line, ["diagnose", str(run.path)])
    assert "step 2" in diagnosed.output
    assert "roundoff replay" not in diagnosed.output
    result = CliRunner().invoke(command_line, ["replay", str(run.path)])
    assert result.exit_code == 2
    assert "the training was watched with --no-data" in result.output


def test_recording_tensors_without_data_is_refused(tmp_path: Path):
    (tmp_path / "train.py").touch()
    result = CliRunner().invoke(command_line, ["record", "--no-data", "--level", "tensors", str(tmp_path / "train.py")])
    assert result.exit_code == 2
    assert "--no-data and --level tensors exclude each other" in result.output


@pytest.mark.parametrize("command", ["run", "record"])
def test_the_option_is_offered(command: str):
    assert "--no-data" in CliRunner().invoke(command_line, [command, "--help"]).output
