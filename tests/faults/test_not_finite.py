"""Planted NaN and infinity, watched from the start: the verdict names rule, step, site and op; healthy twins: silence.

Everything a script's user would run runs here: the watch, its replay, the origin, and the diagnosis from disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose import diagnose_run
from roundoff.runs import Finding, Run
from roundoff.watch.watching import watching

NUM_STEPS = 9
BAD_STEP = 6
BATCH = 8


class Attention(nn.Module):
    """Self-attention with two heads, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, 2, width // 2).transpose(1, 2).reshape(batch * 2, length, width // 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        logits = torch.bmm(q, k.transpose(1, 2)) / (width // 2) ** 0.5
        masked = logits.reshape(batch, 2, length, length).masked_fill(mask[:, None], -torch.inf)
        weights = torch.softmax(masked.float(), dim=-1).to(x.dtype).reshape(batch * 2, length, length)
        mixed = torch.bmm(weights, v).reshape(batch, 2, length, width // 2).transpose(1, 2)
        return self.out(mixed.reshape(batch, length, width))


class Reader(nn.Module):
    """A small transformer block over eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.norm = nn.LayerNorm(16)
        self.attention = Attention(16)
        self.head = nn.Linear(16, 16)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.attention(self.norm(x), mask))


class Classifier(nn.Module):
    """A small network with a function in it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Linear(12, 24)
        self.head = nn.Linear(24, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.body(x)))


def blobs(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 12, generator=generator)
    return x, x[:, :4].argmax(1)


Batch = Callable[[int], tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


def classify(
    function: Callable[[Tensor], Tensor] = F.relu, *, batch: Batch = blobs, loss: Loss = F.cross_entropy
) -> None:
    model = Classifier(function)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(NUM_STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


def read(*, dtype: torch.dtype = torch.float32, mask_row: int | None = None, factor: float = 1.0) -> None:
    model = Reader().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(NUM_STEPS):
        tokens = torch.randint(0, 16, (BATCH, 8))
        mask = torch.ones(BATCH, 8, 8, dtype=torch.bool).triu(1)
        if step == BAD_STEP:
            if mask_row is not None:
                mask[mask_row, 3] = True
            with torch.no_grad():
                model.attention.qkv.weight.mul_(factor)
        optimizer.zero_grad()
        F.cross_entropy(model(tokens, mask).float().flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def scaled(factor: float, *, init_scale: float = 256.0) -> None:
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    mask = torch.ones(BATCH, 8, 8, dtype=torch.bool).triu(1)
    for step in range(NUM_STEPS):
        tokens = torch.randint(0, 16, (BATCH, 8))
        if step == BAD_STEP:
            with torch.no_grad():
                model.attention.qkv.weight.mul_(factor)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(tokens, mask)
        scaler.scale(F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def spoilt(step: int) -> tuple[Tensor, Tensor]:
    x, y = blobs(step)
    if step == BAD_STEP:
        x = torch.where(torch.arange(BATCH * 12).reshape(BATCH, 12) == 5 * 12 + 7, torch.nan, x)
    return x, y


def silent_at(step: int) -> tuple[Tensor, Tensor]:
    x, y = blobs(step)
    return (x * 0 if step == BAD_STEP else x), y


def loud_at(step: int) -> tuple[Tensor, Tensor]:
    x, y = blobs(step)
    return x * (1e4 if step == BAD_STEP else 1), y


def ignored_at(step: int) -> tuple[Tensor, Tensor]:
    x, y = blobs(step)
    return x, torch.full_like(y, -100) if step == BAD_STEP else y


def log_of_softmax(logits: Tensor, labels: Tensor) -> Tensor:
    return -torch.log(torch.softmax(logits, -1))[torch.arange(BATCH), labels].mean()


def normalized(h: Tensor) -> Tensor:
    h = h - h[:, :1]  # so that a row of zeros stays one
    return h / h.norm(dim=-1, keepdim=True)


def root_of_the_positive(h: Tensor) -> Tensor:
    return torch.where(h > 0, torch.sqrt(h), 0.0)


def verdicts(training: Callable[[], None], folder: Path) -> tuple[Finding, ...]:
    """Train in a process of its own, as scripts do, and diagnose what it left."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.manual_seed(0)
            with watching(to=folder):
                training()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    return diagnose_run(Run.open(folder)).findings


@pytest.mark.parametrize(
    ("training", "rule", "step", "site", "op"),
    [
        (lambda: read(dtype=torch.float16, factor=900), "overflow", BAD_STEP, "attention", "aten.bmm#0"),
        (lambda: scaled(9000), "overflow", BAD_STEP, "attention", "aten.bmm#0"),
        (lambda: read(mask_row=5), "masked-softmax", BAD_STEP, "attention", "aten._softmax#0"),
        (lambda: classify(loss=log_of_softmax, batch=loud_at), "domain-error", BAD_STEP, "<loop>", "aten.log#0"),
        (lambda: classify(root_of_the_positive), "domain-error", 0, "<model>", "aten.sqrt#0"),
        (lambda: classify(batch=spoilt), "nonfinite-input", BAD_STEP, "<model>", None),
        (lambda: classify(batch=ignored_at), "no-valid-targets", BAD_STEP, "<loop>", "aten.nll_loss_forward#0"),
    ],
    ids=["attention", "autocast with a scaler", "masked row", "loss", "branch not taken", "data", "no targets"],
)
def test_the_verdict_names_rule_step_site_and_op(
    training: Callable[[], None], rule: str, step: int, site: str, op: str | None, tmp_path: Path
) -> None:
    (finding,) = verdicts(training, tmp_path / "run")
    assert (finding.rule, finding.step, finding.site, finding.op) == (rule, step, site, op)
    if op is not None:
        assert finding.source is not None
        assert finding.source.startswith("tests/faults/test_not_finite.py:")
        assert any(isinstance(fact, dict) and "finite_in_fp64" in fact for fact in finding.evidence)


def test_the_sample_that_is_masked_or_spoilt_is_named(tmp_path: Path) -> None:
    (masked,) = verdicts(lambda: read(mask_row=5), tmp_path / "masked")
    assert "sample 5 of the batch" in masked.why
    (spoilt_input,) = verdicts(lambda: classify(batch=spoilt), tmp_path / "spoilt")
    assert "sample 5 of the batch, feature 7" in spoilt_input.why


@pytest.mark.parametrize(
    "training",
    [
        read,
        lambda: classify(lambda h: (h.relu() * h.relu()).sqrt().detach() + h),
        lambda: classify(lambda h: torch.where(h > 9, torch.sqrt(h.detach() - 5), h)),
        lambda: classify(batch=silent_at),
        lambda: scaled(1.0, init_scale=2.0**40),
    ],
    ids=["masks", "detached root", "discarded branch", "a batch of zeros", "scales that are too large at first"],
)
def test_healthy_twins_are_silent(training: Callable[[], None], tmp_path: Path) -> None:
    assert verdicts(training, tmp_path / "run") == ()
