from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.precision import apply_recipe
from roundoff.precision.recipe.recipe_environment import APPLIED_VARIABLE, read_applied_recipes


def apply(recipe: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)


def test_every_call_leaves_word_of_its_recipe_and_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(APPLIED_VARIABLE, str(tmp_path / "applied.jsonl"))
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", '{"0": "fp32"}')
    apply("half")
    apply("O1")
    first, second = read_applied_recipes(tmp_path / "applied.jsonl")
    assert first.sites == second.sites == {"0": "Linear", "1": "ReLU"}
    assert 'name = "half"' in first.recipe_toml
    assert '0 = "fp32"' in first.recipe_toml
    assert 'name = "O1"' in second.recipe_toml


def test_writes_nothing_unless_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(APPLIED_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    apply("half")
    assert list(tmp_path.iterdir()) == []
    assert read_applied_recipes(tmp_path / "applied.jsonl") == []
