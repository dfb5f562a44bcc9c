import os
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.experiments.subject_train import TrainSubject
from roundoff.experiments.trial import Setting, TrialResult
from roundoff.precision.applied import read_applied
from roundoff.train.config import TrainConfig

CONFIG = TrainConfig(model="resnet-small", width=4, limit=64, batch_size=32, steps=3, recipe="half", threads=1)


def tried(setting: Setting, folder: Path, *, config: TrainConfig = CONFIG, with_rules: bool = False) -> TrialResult:
    task = TrainSubject(config=config, with_rules=with_rules).task(setting, folder=folder)
    result = task.call(task.argument)
    assert isinstance(result, TrialResult)
    return result


def test_a_trial_trains_as_the_settings_say_and_tells_losses_and_accuracy(tmp_path: Path):
    result = tried(Setting(), tmp_path / "1")
    assert len(result.losses) == 3
    assert result.is_finite
    assert result.accuracy is not None
    assert result.eval_loss is not None
    assert result.exit_code == 0
    (applied,) = read_applied(tmp_path / "1" / "applied.jsonl")
    assert 'name = "half"' in applied.recipe_toml
    assert "conv1" in " ".join(applied.sites)


def test_a_setting_changes_recipe_overrides_seed_and_length(tmp_path: Path):
    plain = tried(Setting(), tmp_path / "1")
    assert tried(Setting(), tmp_path / "2").losses == plain.losses
    assert tried(Setting(recipe="fp32"), tmp_path / "3").losses != plain.losses
    wide = tried(Setting(overrides={"*": "fp32"}), tmp_path / "4")
    assert wide.losses != plain.losses
    (applied,) = read_applied(tmp_path / "4" / "applied.jsonl")
    assert '"*" = "fp32"' in applied.recipe_toml
    assert tried(Setting(seed=7), tmp_path / "5").losses != plain.losses
    assert tried(Setting(steps=2), tmp_path / "6").losses == plain.losses[:2]


def test_the_trial_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", '{"*": "fp32"}')
    before = dict(os.environ)
    tried(Setting(recipe="fp32", steps=1), tmp_path / "1")
    assert dict(os.environ) == before


def test_findings_come_where_they_are_asked_for(tmp_path: Path):
    config = TrainConfig(
        model="resnet-small", width=4, limit=64, batch_size=32, steps=3, recipe="half", input_gain=1e6, threads=1
    )
    result = tried(Setting(), tmp_path / "1", config=config, with_rules=True)
    assert not result.is_finite
    assert result.rules[0] == "overflow"
    assert tried(Setting(), tmp_path / "2", config=config).rules == ()


def test_the_name_is_the_command_and_the_fingerprint_is_that_of_the_training(tmp_path: Path):
    subject = TrainSubject(config=CONFIG)
    assert subject.name == ("roundoff train --width 4 --limit 64 --recipe half --steps 3 --batch-size 32 --threads 1")
    elsewhere = TrainSubject(config=replace(CONFIG, runs=tmp_path))
    other = TrainSubject(config=replace(CONFIG, width=8))
    assert subject.fingerprint == elsewhere.fingerprint != other.fingerprint
    recipe = tmp_path / "mine.toml"
    recipe.write_text('base = "half"\n')
    before = TrainSubject(config=replace(CONFIG, recipe=str(recipe))).fingerprint
    recipe.write_text('base = "O2"\n')
    assert TrainSubject(config=replace(CONFIG, recipe=str(recipe))).fingerprint != before
