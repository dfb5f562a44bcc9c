"""The fix of a finding is tried on the last steps, and the training goes on as if it were not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose.diagnosis import diagnose_run
from roundoff.report.findings_text import tried_text
from roundoff.runs import Run, WhatIfProbe
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import watching, watching_with

NUM_STEPS = 40
Trained = tuple[nn.Module, *tuple[object, ...]]
"""The model, and what else a script still has at its end."""


def made(*, rate: float = 0.1) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))
    return model, torch.optim.SGD(model.parameters(), lr=rate)


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 12)
    return x, x[:, :4].argmax(1)


def trained(*, rate: float = 0.1) -> Trained:
    model, optimizer = made(rate=rate)
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model, optimizer


def rate_too_low() -> Trained:
    return trained(rate=1e-6)


def rate_too_high() -> Trained:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model, optimizer


def without_step() -> Trained:
    model, optimizer = made()
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
    return model, optimizer


def cleared_before_step() -> Trained:
    model, optimizer = made()
    for _ in range(NUM_STEPS):
        x, labels = batch()
        F.cross_entropy(model(x), labels).backward()
        optimizer.zero_grad()
        optimizer.step()
    return model, optimizer


def head_left_out() -> Trained:
    model, _ = made()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model, optimizer


def softmax_twice() -> Trained:
    model, optimizer = made()
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x).softmax(1), labels).backward()
        optimizer.step()
    return model, optimizer


def broadcast() -> Trained:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        x = torch.randn(64, 12)
        optimizer.zero_grad()
        ((model(x) - x[:, :3].sum(1)) ** 2).mean().backward()
        optimizer.step()
    return model, optimizer


def equal_rows() -> Trained:
    model, optimizer = made()
    with torch.no_grad():
        for x in model.parameters():
            x.fill_(0.1)
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model, optimizer


def scaled_gradients() -> Trained:
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), labels)).backward()
        optimizer.step()
    return model, optimizer, scaler


def clipped_while_scaled() -> Trained:
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for _ in range(NUM_STEPS):
        x, labels = batch()
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, scaler


FAULTS: list[tuple[str, str, Callable[[], Trained]]] = [
    ("lr-too-low", "rate", rate_too_low),
    ("lr-too-high", "rate", rate_too_high),
    ("missing-step", "step", without_step),
    ("zero-grad-before-step", "clear", cleared_before_step),
    ("not-in-optimizer", "update-others", head_left_out),
    ("double-softmax", "logits", softmax_twice),
    ("loss-broadcast", "same-shape", broadcast),
    ("symmetric-init", "drawn", equal_rows),
    ("step-on-scaled-gradients", "gradients", scaled_gradients),
    ("clip-before-unscale", "unscale", clipped_while_scaled),
]


@pytest.mark.parametrize(("rule", "change", "train"), FAULTS, ids=[rule for rule, _, _ in FAULTS])
def test_the_fix_of_a_finding_helps_in_a_replay(tmp_path: Path, rule: str, change: str, train: Callable[[], Trained]):
    with watching(to=tmp_path / "run"):
        watched = train()
    finding = next(found for found in diagnose_run(Run.open(tmp_path / "run")).findings if found.rule == rule)
    helped = [trial for trial in Run.open(tmp_path / "run").probes(WhatIfProbe) if trial.is_good]
    assert [(trial.rule, trial.change) for trial in helped] == [(rule, change)]
    text = str(tried_text(finding))
    assert helped[0].text in text
    assert "the loss of one batch goes from" in text
    bare = train()[0].state_dict()
    assert all(
        torch.equal(x.nan_to_num(7.0), bare[name].nan_to_num(7.0)) for name, x in watched[0].state_dict().items()
    )


def test_nothing_is_tried_where_nothing_is_found(tmp_path: Path):
    with watching(to=tmp_path / "run"):
        trained()
    assert not list(Run.open(tmp_path / "run").probes(WhatIfProbe))


def test_nothing_is_tried_without_time_for_probes(tmp_path: Path):
    with watching_with(WatchSettings(probe_seconds=0), to=tmp_path / "run"):
        rate_too_low()
    assert not list(Run.open(tmp_path / "run").probes(WhatIfProbe))


def test_a_fix_that_does_not_help_is_said_not_to(tmp_path: Path):
    with watching(to=tmp_path / "run"):
        model, optimizer = made(rate=1e-6)
        for _ in range(NUM_STEPS):
            x = torch.randn(64, 12)
            labels = torch.randint(4, (64,))  # nothing can be learned in so few steps at any rate
            optimizer.zero_grad()
            (F.cross_entropy(model(x), labels) * 1e-9 + 1.0).backward()
            optimizer.step()
    trials = list(Run.open(tmp_path / "run").probes(WhatIfProbe))
    assert not any(trial.is_good for trial in trials)
