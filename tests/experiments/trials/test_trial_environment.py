import json
import os
from pathlib import Path

import pytest

from roundoff.experiments.trials.trial import TrialSetting, environment_variables, steering_environment


def test_a_setting_becomes_variables(tmp_path: Path):
    setting = TrialSetting(recipe="half", overrides={"a": "fp32", "b:softmax": "fp32"}, switches={"randomness": "0"})
    variables = environment_variables(setting, folder=tmp_path)
    assert variables["ROUNDOFF_RECIPE"] == "half"
    assert json.loads(variables["ROUNDOFF_OVERRIDES"]) == {"a": "fp32", "b:softmax": "fp32"}
    assert variables["ROUNDOFF_SITES"] == "a,b:softmax"
    assert json.loads(variables["ROUNDOFF_SWITCHES"]) == {"randomness": "0"}
    assert variables["ROUNDOFF_APPLIED_TO"] == str(tmp_path / "applied.jsonl")


def test_variables_of_this_process_belong_to_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", '{"a": "bf16", "c": "bf16"}')
    monkeypatch.setenv("ROUNDOFF_SWITCHES", '{"adaptive": "0"}')
    variables = environment_variables(
        TrialSetting(overrides={"a": "fp32"}, switches={"randomness": "0"}), folder=tmp_path
    )
    assert json.loads(variables["ROUNDOFF_OVERRIDES"]) == {"a": "fp32", "c": "bf16"}
    assert json.loads(variables["ROUNDOFF_SWITCHES"]) == {"adaptive": "0", "randomness": "0"}
    assert "ROUNDOFF_RECIPE" not in variables


def test_the_environment_is_as_before_when_the_training_has_ended(tmp_path: Path):
    before = dict(os.environ)
    (tmp_path / "applied.jsonl").write_text("what an earlier try left")
    with steering_environment(TrialSetting(recipe="half"), folder=tmp_path):
        assert os.environ["ROUNDOFF_RECIPE"] == "half"
        assert not (tmp_path / "applied.jsonl").exists()
    assert dict(os.environ) == before
