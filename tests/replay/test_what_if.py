"""The steps before a bad one are played with one thing changed, and the training goes on unchanged."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff import apply_recipe
from roundoff.diagnose.diagnosis import diagnose_run
from roundoff.report.findings_text import findings_text, tried_text
from roundoff.runs import JsonValue, Run, WhatIfProbe
from roundoff.watch.watching import watching

BAD = 24


class Scores(nn.Module):
    """Attention whose scores are not scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1) @ x


def trained_in_fp16() -> dict[str, Tensor]:
    """Train with autocast until a batch comes whose scores fp16 cannot hold."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Scores(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 2):
        x = torch.randn(4, 6, 16) * (600.0 if step == BAD else 1.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            scores = model(x)
        F.cross_entropy(scores.float().flatten(0, 1), torch.arange(24) % 4).backward()
        optimizer.step()
    return model.state_dict()


def trained_with_a_jump(*, rate: float) -> dict[str, Tensor]:
    """Train until one update is made with a much higher rate: the loss of the next step jumps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(63):
        optimizer.param_groups[0]["lr"] = rate if step == 59 else 0.1
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    return model.state_dict()


def trials_in(folder: Path) -> dict[str, bool]:
    return {probe.change: probe.is_good for probe in Run.open(folder).probes(WhatIfProbe)}


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overflow") / "run"
    with watching(to=folder):
        watched = trained_in_fp16()
    bare = trained_in_fp16()
    assert all(torch.equal(x.nan_to_num(7.0), bare[name].nan_to_num(7.0)) for name, x in watched.items())
    return folder


def test_what_would_have_prevented_an_overflow_is_tried(overflowed: Path):
    assert trials_in(overflowed) == {"wide-site": True, "wide": True, "rate": False, "clip": False}


def test_a_finding_carries_the_proof_of_its_fix(overflowed: Path):
    diagnosis = diagnose_run(Run.open(overflowed))
    verdict = diagnosis.findings[0]
    assert (verdict.rule, verdict.site, verdict.step) == ("overflow", "1", BAD)
    tried = [item for item in verdict.evidence if isinstance(item, dict) and "tried" in item]
    assert {"tried": "1 computed in fp32", "is_good": True}.items() <= tried[0].items()
    assert "stay finite with 1 computed in fp32 or everything computed in fp32, and not with" in str(
        tried_text(verdict)
    )
    assert re.search(r"\n  tried  in a replay of steps \d+ to 24 losses", findings_text(diagnosis.findings))


def test_a_jump_after_one_large_update_goes_with_a_lower_rate(tmp_path: Path):
    with watching(to=tmp_path / "run"):
        watched = trained_with_a_jump(rate=30.0)
    assert all(torch.equal(x, watched[name]) for name, x in trained_with_a_jump(rate=30.0).items())
    assert trials_in(tmp_path / "run")["rate"]
    assert "the loss does not jump with a tenth of the learning rate" in str(
        tried_text(next(f for f in diagnose_run(Run.open(tmp_path / "run")).findings if f.rule == "loss-spike"))
    )


@pytest.mark.parametrize("evidence", [{"tried": "x"}, {"tried": "x", "steps": [1, 2], "is_good": True}])
def test_evidence_that_says_less_is_left_out(overflowed: Path, evidence: dict[str, JsonValue]):
    verdict = diagnose_run(Run.open(overflowed)).findings[0]
    assert tried_text(replace(verdict, evidence=(evidence,))) is None


def test_nothing_is_tried_about_a_healthy_training(tmp_path: Path):
    with watching(to=tmp_path / "run"):
        trained_with_a_jump(rate=0.1)
    assert trials_in(tmp_path / "run") == {}


def test_recipes_and_scalers_of_other_trainings_do_not_count(tmp_path: Path):
    other = nn.Linear(2, 2)
    kept = [apply_recipe(other, torch.optim.SGD(other.parameters(), lr=0.1), "O2"), torch.amp.GradScaler("cpu")]
    with watching(to=tmp_path / "run"):
        trained_in_fp16()
    assert {"wide-site", "wide", "rate", "clip"} == set(trials_in(tmp_path / "run"))
    assert kept
