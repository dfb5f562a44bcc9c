"""Norms that learn no statistics are named with their site; frozen bodies that have learned theirs are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from roundoff.diagnose.model.batch_statistics import frozen_statistics, lost_statistics
from roundoff.runs import ModuleFacts, ParameterFacts, Run
from roundoff.watch.watching import watching
from tests.diagnose.findings import only
from tests.diagnose.planted import NUM_STEPS
from tests.run_folders import write_run


def norm(**facts: Any) -> ModuleFacts:
    settings = {"momentum": facts.pop("momentum", 0.1)}
    return ModuleFacts(
        **{
            "site": "norm",
            "kind": "BatchNorm1d",
            "training": True,
            "has_start_statistics": True,
            **facts,
            "settings": settings,
        }
    )


@pytest.mark.parametrize(
    ("facts", "words"), [({"momentum": 0}, "its momentum is 0"), ({"training": False}, "eval mode")]
)
def test_a_norm_that_never_learned_is_named(facts: dict[str, Any], words: str, tmp_path: Path) -> None:
    finding = only(frozen_statistics, write_run(tmp_path / "run", norm(**facts)))
    assert (finding.rule, finding.site) == ("running-stats-frozen", "norm")
    assert words in finding.why


@pytest.mark.parametrize(
    "facts",
    [{}, {"momentum": 0, "has_start_statistics": False}, {"training": False, "has_start_statistics": False}],
    ids=["learns", "momentum 0, but learned before", "eval mode, but learned before"],
)
def test_statistics_that_mean_something_may_stay(facts: dict[str, Any], tmp_path: Path) -> None:
    assert frozen_statistics(write_run(tmp_path / "run", norm(**facts))) == []


def test_a_frozen_body_may_stay_as_it_is(tmp_path: Path) -> None:
    weight = ParameterFacts(name="norm.weight", site="norm", shape=(4,), dtype="float32", requires_grad=False)
    assert frozen_statistics(write_run(tmp_path / "run", norm(training=False), weight)) == []


def train(folder: Path, *, writes_back: bool) -> Run:
    import torch

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = model[1].running_mean.clone()
    with watching(model, optimizer, to=folder):
        for _ in range(NUM_STEPS + 1):
            optimizer.zero_grad()
            model(torch.randn(8, 4) + 1).sum().backward()
            optimizer.step()
            if writes_back:
                model[1].running_mean.copy_(kept)
    return Run.open(folder)


def test_statistics_that_are_written_back_are_lost(tmp_path: Path) -> None:
    finding = only(lost_statistics, train(tmp_path / "run", writes_back=True))
    assert (finding.rule, finding.site, finding.step) == ("running-stats-lost", "1", 1)
    assert "bitwise the same before each of 5 forwards" in finding.why


def test_statistics_that_move_are_not(tmp_path: Path) -> None:
    assert lost_statistics(train(tmp_path / "run", writes_back=False)) == []
