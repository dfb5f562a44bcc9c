"""One step of a training is measured, and the training ends with it."""

from pathlib import Path

import pytest

from roundoff.errors import PlanError, SensitivityError
from roundoff.experiments.trials.measurement import Measurement, measurement_task
from roundoff.experiments.trials.targets import CommandTarget, ScriptTarget, TrainTarget
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.record.script import Script
from roundoff.train.config import TrainConfig
from tests.experiments.measured_steps import small_gpt

SCRIPT = """
import torch
from torch import nn
import roundoff

model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
APPLY
for step in range(STEPS):
    print("step", step)
    loss = (model(torch.randn(16, 8)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("the end")
"""
APPLY = 'model, optimizer = roundoff.apply_recipe(model, optimizer, "half")'


def measured(subject: TrialTarget, folder: Path, *, step: int = 2) -> Measurement:
    task = measurement_task(subject, formats=("fp16",), step=step, folder=folder)
    value = task.call(task.argument)
    assert isinstance(value, Measurement)
    return value


def script(folder: Path, *, apply: str = APPLY, steps: int = 50) -> ScriptTarget:
    (folder / "train.py").write_text(SCRIPT.replace("APPLY", apply).replace("STEPS", str(steps)))
    return ScriptTarget(script=Script(target="train.py"), working_folder=folder)


def test_a_script_ends_when_its_step_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(script(tmp_path), tmp_path / "trial")
    assert found.sensitivity.step == 2
    assert found.sensitivity.sites == ("0", "1", "2", "<loop>")
    assert found.applies_recipes
    assert capsys.readouterr().out.splitlines() == ["step 0", "step 1", "step 2", "step 3"]


def test_a_script_that_ends_by_itself_is_measured_too(tmp_path: Path) -> None:
    assert measured(script(tmp_path, steps=3), tmp_path / "trial").sensitivity.step == 2


def test_a_script_without_recipes_is_measured_and_marked(tmp_path: Path) -> None:
    found = measured(script(tmp_path, apply=""), tmp_path / "trial")
    assert found.sensitivity.sites == ("0", "1", "2", "<loop>")
    assert not found.applies_recipes


def test_settings_of_train_are_measured_in_fp32(tmp_path: Path) -> None:
    config = TrainConfig(width=4, limit=256, threads=1, recipe="half")
    found = measured(TrainTarget(config=config), tmp_path / "trial", step=1)
    assert found.sensitivity.num_parameters["head"] > 0
    assert found.applies_recipes


def test_a_step_that_never_comes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SensitivityError, match="Step 7 was not measured"):
        measured(script(tmp_path, steps=3), tmp_path / "trial", step=7)


def test_a_script_that_fails_before_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match="fails in fp32 before the end of step 2"):
        measured(script(tmp_path, apply="raise RuntimeError('no data')"), tmp_path / "trial")
    assert "no data" in capsys.readouterr().err


def test_a_command_cannot_be_measured(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be measured"):
        measurement_task(CommandTarget(words=("true",)), formats=("fp16",), step=2, folder=tmp_path)


def test_a_measurement_goes_to_json_and_back() -> None:
    one = Measurement(sensitivity=small_gpt(), applies_recipes=True)
    assert Measurement.from_object(one.to_object()) == one
