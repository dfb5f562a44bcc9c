"""Trainings under every recipe: what a recipe does on purpose is no fault."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.diagnose import diagnose_run
from roundoff.precision import apply_recipe
from roundoff.runs import Run, RunSummary, Severity, list_runs
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import watching, watching_with

RECIPES = ["O1", "O2", "bf16", "amp-bf16", "fp8", "mxfp8", "mxfp4", "fixed", "O2+act4", "act2", "O2+adam8", "adam4"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_healthy_training_under_a_recipe_is_not_blamed_for_it(recipe: str, tmp_path: Path):
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 4)
    )
    model, optimizer = apply_recipe(model, torch.optim.AdamW(model.parameters(), lr=1e-3), recipe)
    with watching(to=tmp_path / "run"):
        for _ in range(30):
            x = torch.randn(16, 1, 8, 8)
            y = x.view(16, 4, 16).mean(2).argmax(1)
            loss = F.cross_entropy(model(x), y)
            optimizer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    findings = diagnose_run(Run.open(tmp_path / "run")).findings
    assert [(f.rule, f.title) for f in findings if f.severity is not Severity.NOTE] == []


def test_a_recipe_that_a_script_applies_is_in_the_run_and_in_lists(tmp_path: Path):
    model, optimizer = apply_recipe(model := nn.Linear(2, 1), torch.optim.SGD(model.parameters(), lr=0.1), "bf16")
    with watching_with(WatchSettings(probe_seconds=0, recorded_steps=()), to=tmp_path / "run"):
        optimizer.backward(model(torch.ones(3, 2)).float().sum())
        optimizer.step()
    assert Run.open(tmp_path / "run").info.recipe == "bf16"
    (listed,) = list_runs(tmp_path)
    assert isinstance(listed, RunSummary)
    assert listed.recipe == "bf16"
