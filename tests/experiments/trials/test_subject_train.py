import os
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.experiments.trials.targets import TrainTarget
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.precision.recipe.recipe_environment import read_applied_recipes
from roundoff.train.config import TrainConfig

CONFIG = TrainConfig(model="resnet-small", width=4, limit=64, batch_size=32, steps=3, recipe="half", threads=1)


def tried(
    setting: TrialSetting, folder: Path, *, config: TrainConfig = CONFIG, with_rules: bool = False
) -> TrialResult:
    task = TrainTarget(config=config, with_rules=with_rules).task(setting, folder=folder)
    result = task.call(task.argument)
    assert isinstance(result, TrialResult)
    return result


def test_a_trial_trains_as_the_settings_say_and_reports_losses_and_accuracy(tmp_path: Path):
    result = tried(TrialSetting(), tmp_path / "1")
    assert len(result.losses) == 3
    assert result.is_finite
    assert result.accuracy is not None
    assert result.eval_loss is not None
    assert result.exit_code == 0
    (applied,) = read_applied_recipes(tmp_path / "1" / "applied.jsonl")
    assert 'name = "half"' in applied.recipe_toml
    assert "conv1" in " ".join(applied.sites)


def test_a_setting_changes_recipe_overrides_seed_and_length(tmp_path: Path):
    plain = tried(TrialSetting(), tmp_path / "1")
    assert tried(TrialSetting(), tmp_path / "2").losses == plain.losses
    assert tried(TrialSetting(recipe="fp32"), tmp_path / "3").losses != plain.losses
    wide = tried(TrialSetting(overrides={"*": "fp32"}), tmp_path / "4")
    assert wide.losses != plain.losses
    (applied,) = read_applied_recipes(tmp_path / "4" / "applied.jsonl")
    assert '"*" = "fp32"' in applied.recipe_toml
    assert tried(TrialSetting(seed=7), tmp_path / "5").losses != plain.losses
    assert tried(TrialSetting(steps=2), tmp_path / "6").losses == plain.losses[:2]


def test_the_trial_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", '{"*": "fp32"}')
    before = dict(os.environ)
    tried(TrialSetting(recipe="fp32", steps=1), tmp_path / "1")
    assert dict(os.environ) == before


def test_findings_are_returned_if_requested(tmp_path: Path):
    config = TrainConfig(
        model="resnet-small", width=4, limit=64, batch_size=32, steps=3, recipe="half", input_gain=1e6, threads=1
    )
    result = tried(TrialSetting(), tmp_path / "1", config=config, with_rules=True)
    assert not result.is_finite
    assert result.rules[0] == "overflow"
    assert tried(TrialSetting(), tmp_path / "2", config=config).rules == ()


def test_the_name_is_the_command_and_the_fingerprint_is_that_of_the_training(tmp_path: Path):
    subject = TrainTarget(config=CONFIG)
    assert subject.name == ("roundoff train --width 4 --limit 64 --recipe half --steps 3 --batch-size 32 --threads 1")
    elsewhere = TrainTarget(config=replace(CONFIG, runs=tmp_path))
    other = TrainTarget(config=replace(CONFIG, width=8))
    assert subject.fingerprint == elsewhere.fingerprint != other.fingerprint
    recipe = tmp_path / "mine.toml"
    recipe.write_text('base = "half"\n')
    before = TrainTarget(config=replace(CONFIG, recipe=str(recipe))).fingerprint
    recipe.write_text('base = "O2"\n')
    assert TrainTarget(config=replace(CONFIG, recipe=str(recipe))).fingerprint != before
