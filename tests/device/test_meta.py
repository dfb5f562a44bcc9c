"""Models on the meta device, which has no values: what cannot be done with them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import roundoff
from roundoff.diagnose import diagnose_run
from roundoff.errors import CompareError, RecipeError, SensitivityError
from roundoff.precision import apply_recipe
from roundoff.record.device_check import checking_device
from roundoff.record.event_selection import EventSelection
from roundoff.runs import Run
from roundoff.watch.watching import watching


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def try_on_meta() -> None:
    """Take two steps that compute nothing but shapes, as is done to estimate memory."""
    model = make().to("meta")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        x, y = torch.ones(16, 4, device="meta"), torch.zeros(16, dtype=torch.int64, device="meta")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def train_after_meta(*, num_steps: int = 12, bad: int | None = None) -> list[Tensor]:
    """Make a model on the meta device, try it there, give it memory and train it on the accelerator."""
    try_on_meta()
    with torch.device("meta"):
        model = make()
    torch.manual_seed(0)
    model.to_empty(device="sim")
    with torch.no_grad():
        for x in (*model.parameters(), *model.buffers()):
            x.copy_(torch.rand(x.shape).to(x.dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(num_steps):
        x = torch.randn(16, 4)
        y = x[:, :2].argmax(1).to("sim")
        if step == bad:
            x[3, 2] = torch.nan
        optimizer.zero_grad()
        F.cross_entropy(model(x.to("sim")), y).backward()
        optimizer.step()
    return [x.detach().cpu() for x in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"reference": "fp64"}, {"level": "tensors"}])
def test_a_recording_takes_what_has_values(tmp_path: Path, options: dict[str, str]) -> None:
    with roundoff.recording(to=tmp_path / "run", strict=True, **options):
        recorded = train_after_meta()

    assert all(torch.equal(x, y) for x, y in zip(recorded, train_after_meta(), strict=True))
    run = Run.open(tmp_path / "run")
    assert [line.loss is not None for line in run.metrics()] == [False] * 2 + [True] * 12
    assert "could not be read (meta, " in run.info.notes[0]


def test_a_watch_goes_on_after_it(tmp_path: Path) -> None:
    with watching(to=tmp_path / "good") as watch:
        watched = train_after_meta()
    with watching(to=tmp_path / "bad"):
        train_after_meta(bad=9)

    assert all(torch.equal(x, y) for x, y in zip(watched, train_after_meta(), strict=True))
    good, bad = (Run.open(tmp_path / name) for name in ("good", "bad"))
    assert watch.complaints == ["2 steps cannot be replayed: its weights are on the meta device, without values."]
    assert (diagnose_run(good).findings, list(good.failures()), list(bad.failures())) == ((), [], [])
    found = diagnose_run(bad).findings[0]
    assert (found.rule, found.step) == ("nonfinite-input", 11)


@pytest.mark.parametrize("recipe", ["O2", "fp8", "fixed", "act4"])
def test_a_recipe_refuses_weights_without_values(recipe: str) -> None:
    model = make().to("meta")
    with pytest.raises(RecipeError, match="on the meta device"):
        apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)


def test_what_needs_values_says_so() -> None:
    with pytest.raises(CompareError, match="candidate are on the meta device"):
        roundoff.compare_models(make(), make().to("meta"), torch.ones(16, 4))
    with roundoff.measuring_sensitivity(step=0) as measured:
        try_on_meta()
    with pytest.raises(SensitivityError, match="not measured"):
        _ = measured.sensitivity


def test_nothing_on_it_is_checked_as_a_device() -> None:
    with checking_device(EventSelection.of(steps=2)) as checker:
        train_after_meta(num_steps=2)

    assert {op.device for op in checker.ops} == {"sim:0"}
    assert not any(op.is_reported for op in checker.ops)
