"""Any step in the ring is rebuilt bit for bit, and nothing that the training can see is touched by it."""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundoff.diagnose import diagnose_run
from roundoff.replay import python_state
from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch
from roundoff.watch.watching import start_watching

NUM_STEPS = 50
COUNTS: dict[str, Any] = {"forwards": 0, "seen": []}


@pytest.fixture(autouse=True)
def _only_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that another test has left running must not decide what is restored here."""
    monkeypatch.setattr(python_state, "other_threads_run_users_code", lambda: False)


class Net(nn.Module):
    """A net with dropout, statistics, a queue, a counter and noise from every generator."""

    def __init__(self, inside: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)
        self.queue: list[Tensor] = []
        self.bank = torch.zeros(4, 8)
        self.num_calls = 0
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inside(self.body(x))
        hidden = hidden + random.random() * 0.01 + float(np.random.rand()) * 0.01
        self.bank[self.num_calls % 4] = hidden.detach().mean(0)
        self.queue = [*self.queue[-2:], hidden.detach().mean()]
        self.num_calls += 1
        COUNTS["forwards"] += 1
        COUNTS["seen"].append(len(x))
        print("forward", self.num_calls)
        return self.head(hidden + self.bank.mean(0))


@contextlib.contextmanager
def watching(*, to: Path, **settings: Any) -> Iterator[Watch]:
    """Watch what is inside the block, without experiments at its end."""
    watch = start_watching(to=to, settings=WatchSettings(probe_seconds=0, **settings))
    with watch.running():
        yield watch


def train(model: nn.Module, batch_of: Callable[[int], Tensor]) -> dict[str, Any]:
    """Train and return everything that the training can see at its end."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(NUM_STEPS):
        x = batch_of(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x.argmax(1) % 3).backward()
        optimizer.step()
    return {
        "weights": model.state_dict(),
        "gradients": [p.grad for p in model.parameters()],
        "optimizer": optimizer.state_dict()["state"],
        "attributes": [getattr(model, name, None) for name in ("queue", "bank", "num_calls")],
        "generators": [torch.get_rng_state(), random.getstate(), np.random.get_state()],
        "versions": [p._version for p in model.parameters()],
        "globals": copy.deepcopy(COUNTS),
    }


def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    COUNTS.update(forwards=0, seen=[])


def batch(step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def batch_with_nan_at(bad: int) -> Callable[[int], Tensor]:
    return lambda step: batch(step).index_fill(0, torch.tensor([2]), float("nan")) if step == bad else batch(step)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.all(a == b))


def raises_when_replayed(x: Tensor) -> Tensor:
    if torch._C._len_torch_dispatch_stack():
        raise ValueError("not twice")
    return x


def test_a_step_in_the_middle_is_rebuilt_from_a_snapshot_further_back(tmp_path: Path) -> None:
    seeded()
    with watching(to=tmp_path / "run"):
        train(Net(), batch_with_nan_at(43))
    run = Run.open(tmp_path / "run")
    info = run.replay(43).replay_info()
    assert run.replayed_steps[0] == 43
    assert info is not None
    assert info.is_identical
    assert info.snapshot_step < 43


@pytest.mark.parametrize(
    ("inside", "batches"),
    [(lambda x: x, batch), (lambda x: x, batch_with_nan_at(30)), (raises_when_replayed, batch)],
    ids=["healthy", "with a bad step", "where the replay raises"],
)
def test_a_replay_leaves_everything_as_it_was(
    inside: Any, batches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded()
    bare = train(Net(inside), batches)
    said = capsys.readouterr().out
    seeded()
    with watching(to=tmp_path / "run"):
        watched = train(Net(inside), batches)
    assert capsys.readouterr().out == said
    for what, value in bare.items():
        assert same(value, watched[what]), what


def test_a_replay_that_raises_is_noted_and_no_finding(tmp_path: Path) -> None:
    seeded()
    with watching(to=tmp_path / "run"):
        train(Net(raises_when_replayed), batch)
    run = Run.open(tmp_path / "run")
    assert run.info.notes[0] == "Step 0 could not be recorded completely: replaying it raised ValueError: not twice."
    assert "nondeterministic-step" not in [finding.rule for finding in diagnose_run(run).findings]


def test_weights_that_went_bad_earlier_lead_to_the_step_that_made_them_so(tmp_path: Path) -> None:
    seeded()
    body, spare = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *spare.parameters()], lr=1e-2)
    with watching(to=tmp_path / "run"):
        for step in range(NUM_STEPS):
            x = batch(step)
            optimizer.zero_grad()
            logits = body(x) + (spare(x) if step % 4 == 0 else 0)
            nn.functional.cross_entropy(logits, x.argmax(1) % 3).backward()
            if step == 40:
                spare.weight.grad.mul_(float("inf"))
            optimizer.step()
    assert Run.open(tmp_path / "run").replayed_steps[0] == 40


def test_too_little_memory_is_reported_and_the_training_still_watched(tmp_path: Path) -> None:
    seeded()
    with watching(to=tmp_path / "run", snapshot_bytes=100) as watch:
        train(Net(), batch)
    run = Run.open(tmp_path / "run")
    assert len(run.metrics()) == NUM_STEPS
    assert run.steps == []
    assert run.info.notes == (
        "Step 0 could not be recorded: no snapshot leads to it.",
        "Step 1 could not be recorded: no snapshot leads to it.",
    )
    assert any("no snapshots, so no replay" in complaint for complaint in watch.complaints)


def test_a_step_with_unseeded_noise_is_not_reproducible(tmp_path: Path) -> None:
    seeded()
    with watching(to=tmp_path / "run"):
        train(Net(lambda x: x + int.from_bytes(os.urandom(2), "little") * 1e-6), batch)
    (finding,) = [f for f in diagnose_run(Run.open(tmp_path / "run")).findings if f.rule == "nondeterministic-step"]
    assert finding.step == 0


def test_dropout_repeats(tmp_path: Path) -> None:
    seeded()
    with watching(to=tmp_path / "run"):
        train(Net(), batch)
    run = Run.open(tmp_path / "run")
    assert run.info.notes == ()
    assert run.steps == [0, 1]
    assert run.replayed_steps == []


def test_a_step_that_depends_on_what_is_not_kept_is_noted_and_no_finding(tmp_path: Path) -> None:
    seeded()
    with watching(to=tmp_path / "run"):
        train(Net(lambda x: x * (1 + COUNTS["forwards"])), batch)
    run = Run.open(tmp_path / "run")
    assert run.replayed_steps == []
    assert run.info.notes[0].startswith("Step 0 was recorded from a replay that came out differently")
    assert "nondeterministic-step" not in [finding.rule for finding in diagnose_run(run).findings]
