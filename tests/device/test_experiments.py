"""Experiments of many trainings on an accelerator: a plan and a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundoff.cli import command_line

PLANNED = """
import torch
from torch import nn

class Energy(nn.Module):
    def forward(self, x):
        return torch.log1p((1e4 * x).square())

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), Energy(), nn.Linear(16, 4)).to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(16, 8).to("sim"), torch.randint(4, (16,)).to("sim")
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

SWEEP = """
[settings]
data = "digits"
limit = 64
width = 4
steps = 2
[axes]
device = ["cpu", "sim"]
recipe = ["fp32", "O2"]
"""


def test_a_plan_names_what_overflows_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PLANNED)
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(command_line, ["plan", "--jobs", "0", "--steps", "3", "--json", "train.py"])

    assert result.exit_code == 1, result.output  # it is not tried out: the script applies no recipe
    assert [each["site"] for each in json.loads(result.stdout.splitlines()[-1])["wide"]] == ["1"]


def test_a_sweep_trains_there_as_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "devices.toml").write_text(SWEEP)
    options = ["--jobs", "0", "--runs", str(tmp_path), "--json"]

    result = CliRunner().invoke(command_line, ["sweep", *options, str(tmp_path / "devices.toml")])

    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 4
    losses = [row["eval_loss"] for row in rows]
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-3)
