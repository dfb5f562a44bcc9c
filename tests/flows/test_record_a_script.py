"""A journey: record an unchanged script, list the runs, and read one layer's backward ops with their source lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TRAIN = """\
import argparse

import torch
from torch import nn

from net import Net

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
options = parser.parse_args()

torch.manual_seed(0)
model = Net()
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
x, y = torch.ones(2, 3), torch.zeros(2, 1)
for epoch in range(3):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
"""

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.5)

    def forward(self, x):
        x = torch.relu(self.encoder(x))
        return self.head(x)
"""

BACKWARD = """\
step  phase     site  op                  parameter    dtype    shape   min   max  mean  nonfinite  source
0     backward  head  aten.mm#0:output0   -            float32  2x4    2.25  2.25  2.25          0  net.py:15
0     backward  head  aten.mm#1:output0   -            float32  1x4      18    18    18          0  net.py:15
0     backward  head  aten.sum#0:output0  -            float32  1x1       9     9     9          0  net.py:15
0     backward  head  gradient#0:output0  head.weight  float32  1x4      18    18    18          0  -
0     backward  head  gradient#1:output0  head.bias    float32  1         9     9     9          0  -
"""

OPTIMIZER = """\
step  phase      site  op                   parameter    dtype    shape   min   max  mean  nonfinite  source
0     optimizer  head  aten.add_#0:output0  head.weight  float32  1x4    -1.3  -1.3  -1.3          0  train.py:21
0     optimizer  head  aten.add_#1:output0  head.bias    float32  1      -0.4  -0.4  -0.4          0  train.py:21
"""


def roundoff(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "roundoff", *words], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_from_an_unchanged_script_to_the_numbers_of_one_layer(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "net.py").write_text(NET)

    done = roundoff(tmp_path, "record", "--steps", "0-1", "--no-inputs", "train.py", "--lr", "0.1")
    assert done.stdout == "epoch 0 loss 20.2500\nepoch 1 loss 2.0736\nepoch 2 loss 0.0125\n"
    assert re.fullmatch(
        r"recorded 2 steps, 64 events in \d+\.\d s to runs/train-1\n"
        r"next   roundoff runs show runs/train-1 --step 0\n",
        done.stderr,
    )

    assert roundoff(tmp_path, "runs").stdout == (
        "run           recipe  status    steps  last loss  findings\n"
        "runs/train-1  -       finished      3    0.01254  not diagnosed\n"
    )

    shown = roundoff(tmp_path, "runs", "show", "runs/train-1", "--step", "0", "--site", "head", "--phase", "backward")
    assert shown.stdout == BACKWARD

    shown = roundoff(tmp_path, "runs", "show", "runs/train-1", "--step", "0", "--site", "head", "--phase", "optimizer")
    assert shown.stdout == OPTIMIZER
