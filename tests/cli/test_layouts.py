"""`roundoff layouts` on a script, as the page says, and `roundoff compare` of its two runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "comparing-layouts.md"
SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert os.environ["ROUNDOFF_MESH"] == f"tp={world}"

def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.function = backward
        return forward(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.function(grad), None, None

class Linear(nn.Module):
    def __init__(self, whole, dim):
        super().__init__()
        self.dim, bias = dim, whole.bias.data.chunk(world)[rank] if dim == 0 else whole.bias.data
        self.weight = nn.Parameter(whole.weight.data.chunk(world, dim)[rank].clone())
        self.bias = nn.Parameter(bias.clone())

    def forward(self, x):
        if self.dim == 0:
            return Exchange.apply(x, torch.clone, summed) @ self.weight.T + self.bias
        return Exchange.apply(x @ self.weight.T, summed, summed) + self.bias

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, up, down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 4)
        self.up, self.down = Linear(up, 0), Linear(down, 1)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.enter(x) ** 2 + x)))

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 8)
nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
optimizer.step()
"""


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    result = invoke("layouts", "--mesh", "tp=2", "--steps", "0", "train.py")
    assert result.exit_code == 1, result.stderr
    shown = PAGE.read_text().split("train.py\n", 1)[1].split("```")[0]
    assert result.stdout == shown
    assert [Run.open(path).info.ranks for path in sorted(Path("runs").iterdir())] == [2, 1]
    compared = invoke("compare", "runs/train-1-one", "runs/train-1-many", "--json")
    assert compared.exit_code == 1
    assert json.loads(compared.stdout)["finding"]["rule"] == "layout-gradient-scale"
    assert json.loads(compared.stdout)["mesh"] == "tp=2"
    refused = invoke("compare", "runs/train-1-one", "runs/train-1-many", "--mesh", "tp=4")
    assert (refused.exit_code, "it has 4 ranks, and the candidate 2" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_a_script_that_fails_on_a_rank_is_reported_with_what_it_printed(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nassert os.environ['WORLD_SIZE'] == '1' or os.environ['RANK'] == '0', 'no such rank'\n"
    )
    result = invoke("layouts", "--ranks", "2", "--runs", str(tmp_path / "runs"), str(script))
    assert result.exit_code == 2
    assert "nothing was recorded" in result.stderr or "no such rank" in result.stderr


@pytest.mark.parametrize("options", [[], ["--mesh", "tp=2", "--ranks", "2"]])
def test_the_layout_must_be_given_once(options: list[str], tmp_path: Path):
    (tmp_path / "train.py").touch()
    result = invoke("layouts", *options, str(tmp_path / "train.py"))
    assert (result.exit_code, "The layout is not known." in result.stderr) == (2, True)
