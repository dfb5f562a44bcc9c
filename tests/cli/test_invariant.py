"""`roundoff invariant` on scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line

SCRIPT = """
import sys
import torch
from torch import nn

class Scale(nn.Module):
    def forward(self, x):
        scale = x.detach().abs().max() / 7
        return scale * (x / scale).round()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), Scale() if "scale" in sys.argv else nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    print("step", step)
    optimizer.zero_grad()
    model(torch.randn(6, 4) * torch.tensor([9.0, 1, 1, 1, 1, 1])[:, None]).square().mean().backward()
    optimizer.step()
if "fails" in sys.argv:
    raise SystemExit(3)
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["invariant", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_what_depends_on_the_batch_is_listed_with_its_line_and_the_script_ends_at_the_step() -> None:
    result = invoke("--step", "1", "train.py", "scale")
    assert result.exit_code == 1, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:3] == ["step 0", "step 1", "step 1, sample 3 of a batch of 6, in eval mode"]
    assert "played again                    the same bits in all " in result.stdout
    assert "beside copies of itself         other bits in " in result.stdout
    assert "with 8 more columns of padding  not played: the model gets no token ids" in result.stdout
    (row,) = [line for line in lines if line.startswith("aten.div ")]
    assert row.split()[:4] == ["aten.div", "float32[6x4]", "1", "train.py:9"]
    assert not Path("runs").exists()


def test_json_has_all_of_it_on_the_last_line() -> None:
    answer = json.loads(invoke("--sample", "2", "--json", "train.py", "scale").stdout.splitlines()[-1])
    assert (answer["step"], answer["sample"], answer["size"]) == (0, 2, 6)
    by_name = {batch["batch"]: batch for batch in answer["batches"]}
    assert not by_name["played again"]["varying"]
    assert {op["site"] for op in by_name["beside copies of itself"]["varying"]} == {"1"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--step", "9", "train.py"), "the script ended before step 9 did."),
        (("--step", "9", "train.py", "fails"), "it exited with 3."),
        (("--sample", "6", "train.py"), "the batch has 6 samples, from 0 on."),
        (("none.py",), "it does not exist."),
        ((), "roundoff invariant train.py"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: tuple[str, ...], why: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert why in result.stderr
