from pathlib import Path

from roundoff.experiments.trials.targets import ScriptTarget
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.precision.recipe.recipe_environment import read_applied_recipes
from roundoff.record.script import Script

SCRIPT = """
import sys
import torch
from torch import nn
import roundoff

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
model, optimizer = roundoff.apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.05), "half")
for step in range(int(sys.argv[1])):
    x = torch.randn(16, 8)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
print("the end")
"""


def tried(folder: Path, setting: TrialSetting, *args: str, text: str = SCRIPT, seed: int | None = 0) -> TrialResult:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    script = Script(target="train.py", args=args or ("4",))
    task = ScriptTarget(script=script, working_folder=folder, seed=seed).task(setting, folder=folder / "trial")
    result = task.call(task.argument)
    assert isinstance(result, TrialResult)
    return result


def test_a_trial_runs_the_script_and_reports_the_loss_of_every_step(tmp_path: Path, capsys):
    result = tried(tmp_path / "a", TrialSetting())
    assert len(result.losses) == 4
    assert result.exit_code == 0
    assert result.folder == tmp_path / "a" / "trial"
    assert capsys.readouterr().out == "the end\n"


def test_overrides_reach_apply_recipe_in_the_script(tmp_path: Path):
    plain = tried(tmp_path / "a", TrialSetting())
    wide = tried(tmp_path / "b", TrialSetting(overrides={"0": "fp32", "2": "fp32"}))
    assert wide.losses != plain.losses
    (applied,) = read_applied_recipes(tmp_path / "b" / "trial" / "applied.jsonl")
    assert list(applied.sites) == ["0", "1", "2"]
    assert '2 = "fp32"' in applied.recipe_toml


def test_the_same_seed_gives_the_same_losses_though_the_script_sets_none(tmp_path: Path):
    first, again = tried(tmp_path / "a", TrialSetting()), tried(tmp_path / "b", TrialSetting())
    assert first.losses == again.losses
    assert tried(tmp_path / "c", TrialSetting(seed=5)).losses != first.losses


def test_a_script_can_be_ended_after_some_steps(tmp_path: Path, capsys):
    short = tried(tmp_path / "a", TrialSetting(steps=3), "50")
    assert (len(short.losses), short.exit_code) == (3, 0)
    assert short.losses == tried(tmp_path / "b", TrialSetting()).losses[:3]
    assert capsys.readouterr().out == "the end\n"


def test_what_the_script_raises_is_its_exit_code(tmp_path: Path, capsys):
    result = tried(tmp_path / "a", TrialSetting(), text="raise RuntimeError('no')")
    assert (result.exit_code, result.losses) == (1, ())
    assert "RuntimeError: no" in capsys.readouterr().err
    assert tried(tmp_path / "b", TrialSetting(), text="import sys; sys.exit(7)").exit_code == 7


def test_another_text_of_the_script_is_another_training(tmp_path: Path):
    (tmp_path / "train.py").write_text("pass")
    subject = ScriptTarget(script=Script(target="train.py", args=("--lr", "1")), working_folder=tmp_path)
    before = subject.fingerprint
    assert subject.name == "train.py --lr 1"
    assert before == subject.fingerprint
    (tmp_path / "train.py").write_text("print()")
    assert subject.fingerprint != before
