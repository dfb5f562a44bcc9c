"""The command as a stranger types it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner, Result
from torch import Tensor, nn

from roundoff.cli import command_line
from roundoff.watch.watching import watching
from tests.run_folders import write_run

BUILDERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, width), nn.Dropout(0.2), nn.Linear(width, 4)
    def forward(self, x):
        h = self.a(x)
        return self.b(self.drop((h @ h.t()) @ h))

def build():
    model = Net()
    return model, torch.optim.AdamW(model.parameters())

def alone(): return Net()
def wide(): return Net(32)
def another(): return nn.Sequential(nn.Linear(8, 4))
def several(): return [Net(), Net()]
def other_optimizer():
    model = Net()
    return model, torch.optim.SGD(model.parameters(), 0.1)
def raising(): raise ValueError("no weights here")
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(self.drop((h @ h.t()) @ h))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose third batch overflows in fp16, a healthy one, and a file of builders."""
    folder = tmp_path_factory.mktemp("replay")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(to=folder / "run"):
        for step in range(4):
            x, y = torch.randn(4, 8) * (300 if step == 2 else 1), torch.randint(0, 4, (4,))
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    write_run(folder / "healthy")
    (folder / "model.py").write_text(BUILDERS)
    return folder


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def replay(*words: str) -> Result:
    return CliRunner().invoke(command_line, ["replay", *words])


def test_without_a_builder_it_shows_what_was_saved_and_how_to_go_on():
    answer = replay("run")
    assert (answer.exit_code, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == "step 2 of run"
    assert lines[1].startswith("  origin     <model> / aten.mm#0   forward")
    assert lines[1].endswith("; in fp64 it is finite")
    assert lines[2:4] == ["  model      Net, 212 numbers", "  optimizer  AdamW"]
    assert lines[4].startswith("  batch      outside0   float32   [4, 8]            -")
    assert lines[5].startswith("             outside1   int64     [4]               2 to 3")
    assert lines[6:] == [
        "  export     roundoff replay run --export repro.py",
        "  run again  roundoff replay run --builder FILE.py:build",
        "",
        "    def build():",
        "        model = Net(...)",
        "        optimizer = torch.optim.AdamW(model.parameters())",
        "        return model, optimizer",
    ]


def test_with_a_builder_it_says_that_the_bad_value_appears_again():
    answer = replay("run", "--builder", "model.py:build")
    assert (answer.exit_code, answer.stderr) == (1, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == "step 2: the bad value appears again, at the same op."
    assert lines[1] == "  origin     <model> / aten.mm#0   forward   model.py:11"
    assert lines[2] == "  loss       nan, as it was"
    assert lines[3].startswith("  same       all ")
    assert lines[3].endswith(" tensors of the step, bit for bit")
    assert lines[4] == "  next       roundoff replay run --builder model.py:build --recipe fp32"


def test_with_a_wider_recipe_it_says_that_all_is_finite():
    answer = replay("run", "--builder", "model.py:build", "--recipe", "fp32")
    assert (answer.exit_code, answer.stderr) == (0, "")
    first, second = answer.stdout.splitlines()
    assert first == "step 2 with recipe fp32: everything that matters is finite."
    assert second.startswith("  loss       ")
    assert second.endswith("; it was nan")


def test_the_answer_is_there_as_json():
    shown = json.loads(replay("run", "--json").stdout)
    assert (shown["run"], shown["step"], shown["models"]) == ("run", 2, ["Net"])
    assert [tensor["shape"] for tensor in shown["batch"]] == [[4, 8], [4]]
    again = json.loads(replay("run", "--builder", "model.py:alone", "--json").stdout)
    assert (again["is_bad"], again["is_same_place"], again["has_optimizer"]) == (True, True, False)
    assert (again["origin"]["site"], again["origin"]["op"]) == ("<model>", "aten.mm#0")
    assert again["num_same"] == again["num_compared"] > 20


def test_export_writes_a_script(tmp_path: Path):
    answer = replay("run", "--export", str(tmp_path / "repro.py"))
    assert (answer.exit_code, answer.stdout) == (0, f"wrote {tmp_path}/repro.py; run it:  python {tmp_path}/repro.py\n")
    assert "torch.ops.aten.mm.default" in (tmp_path / "repro.py").read_text()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("nowhere",), "'nowhere' does not exist"),
        (("healthy",), "No step was saved in 'healthy'"),
        (("run", "--step", "9"), "Step 9 was not saved in 'run'.\n  why: saved steps: 2."),
        (("run", "--rank", "3"), "Rank 3 saved nothing of step 2"),
        (("run", "--recipe", "fp32"), "--recipe needs --builder"),
        (("run", "--to", "kept"), "--to needs --builder"),
        (("run", "--builder", "model.py:build", "--export", "x.py"), "--export and --builder cannot be combined"),
        (("run", "--builder", "model.py"), "Invalid builder 'model.py'"),
        (("run", "--builder", "nowhere.py:build"), "There is no builder 'nowhere.py:build'"),
        (("run", "--builder", "model.py:raising"), "raised ValueError.\n  why: no weights here (line 24)"),
        (("run", "--builder", "model.py:wide"), "'a.weight' has the shape [32, 8], but was saved as [16, 8]"),
        (
            ("run", "--builder", "model.py:another"),
            "it lacks 'a.weight', 'a.bias', 'b.weight', 'b.bias'; it has '0.weight', '0.bias', which the step does not",
        ),
        (("run", "--builder", "model.py:several"), "The builder returns 2 models, but the step has 1"),
        (("run", "--builder", "model.py:other_optimizer"), "returns SGD, but the step was made with AdamW"),
        (("run", "--builder", "model.py:build", "--recipe", "fp99"), "No recipe 'fp99'"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(words: tuple[str, ...], reported: str):
    answer = replay(*words)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert reported in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda tape: tape.pop("models"),
        lambda tape: tape.update(calls={}),
        lambda tape: tape["calls"][0].pop("args"),
        lambda tape: tape["calls"][1].update(name="os.system"),
        lambda tape: tape["calls"][0].update(module={"module": [7, ""]}),
        lambda tape: tape["calls"][0].update(args={"eval": "1"}),
    ],
)
def test_a_damaged_tape_is_reported_without_a_traceback(damage, folder: Path, tmp_path: Path):
    shutil.copytree(folder / "run", tmp_path / "run")
    path = tmp_path / "run" / "replay" / "step2" / "tape-rank0.json"
    tape = json.loads(path.read_text())
    damage(tape)
    path.write_text(json.dumps(tape))
    answer = replay(str(tmp_path / "run"), "--builder", "model.py:build")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "cannot be read" in answer.stderr


def what_if(*words: str) -> Result:
    return CliRunner().invoke(command_line, ["what-if", "run", *words])


def test_what_if_plays_the_step_with_each_change():
    result = what_if("--builder", "model.py:build", "--lr", "0.1x", "--clip", "1", "--wide", "all", "--repeat", "2")
    lines = result.stdout.splitlines()
    assert lines[:5] == [
        "step 2, played 2 times in a row",
        "with                              result      losses",
        "nothing changed                   not finite  nan",
        "a tenth of the learning rate      not finite  nan",
        "gradients clipped to a norm of 1  not finite  nan",
    ]
    assert lines[5].startswith("everything computed in fp32       finite      ")
    assert result.exit_code == 0


def test_what_if_ends_with_1_if_nothing_helps():
    result = what_if("--builder", "model.py:build", "--lr", "1e-5", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["change"] for each in found["played"]] == ["nothing changed", "a learning rate of 1e-05"]
    assert not any(each["is_good"] for each in found["played"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--builder", "model.py:build"), "There is nothing to change."),
        (("--builder", "model.py:build", "--lr", "fast"), "Invalid learning rate 'fast'."),
        (("--builder", "model.py:build", "--lr", "-1"), "Invalid learning rate '-1'."),
        (("--builder", "model.py:build", "--wide", "c"), "The model has no layer 'c'."),
        (("--builder", "model.py:alone", "--lr", "1e-3"), "The step cannot be played with a learning rate of 0.001."),
        (("--builder", "model.py:build", "--lr", "1", "--step", "3"), "Step 3 was not saved in 'run'."),
    ],
)
def test_what_if_says_what_it_cannot_do(words: tuple[str, ...], message: str):
    result = what_if(*words)
    assert result.exit_code == 2
    assert message in result.stderr
