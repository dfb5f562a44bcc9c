"""The last step of a training on an accelerator, played again with one thing changed: the same probes as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import Run
from roundoff.watch.watching import watching
from tests.device.simulated_device import Execution, behaving


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out

    def batch(self) -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 8)
        return x, x[:, :3].argmax(1)


class Half(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).to(torch.bfloat16)

    def batch(self) -> tuple[Tensor, Tensor]:
        x, y = super().batch()
        return x.to(torch.bfloat16), y


class Mixing(Classifier):
    """Subtracts the mean of the batch, also in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        out: Tensor = self.head(self.layer(self.embed(x), src_mask=mask, is_causal=True)).transpose(1, 2)
        return out

    def batch(self) -> tuple[Tensor, Tensor]:
        x = torch.randint(20, (8, 13))
        return x[:, :-1], x[:, 1:]


def probes(folder: Path, make: Callable[[], Any], device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = make()
    batches = [model.batch() for _ in range(5)]
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watching(to=folder):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)).float(), y.to(device)).backward()
            optimizer.step()
    run = Run.open(folder)
    assert list(run.failures()) == []
    return {probe.probe: probe for probe in run.probes()}


@pytest.mark.parametrize(("execution", "fp64"), [("at once", True), ("when waited for", True), ("at once", False)])
@pytest.mark.parametrize("make", [Classifier, Half, Mixing, Language])
def test_probes_find_what_they_find_on_the_cpu(
    tmp_path: Path, make: Callable[[], Any], execution: Execution, fp64: bool, request: pytest.FixtureRequest
) -> None:
    here = probes(tmp_path / "here", make, "cpu")
    if not fp64:
        request.getfixturevalue("without_fp64")
    with behaving(execution=execution, fp64=fp64):
        there = probes(tmp_path / "there", make, "sim")

    needs_fp64 = {"wide", "direction"}
    assert there.keys() >= here.keys() - (set() if fp64 else needs_fp64)
    assert there["eval-mode"].eval_loss == pytest.approx(here["eval-mode"].eval_loss, rel=0.02)
    assert there["half-batch"].halves == pytest.approx(here["half-batch"].halves, rel=0.02)
    if make is not Language:
        assert there["batch-mixing"].changed == here["batch-mixing"].changed
        assert bool(there["batch-mixing"].changed) == (make is Mixing)
    else:
        assert there["token-flow"] == here["token-flow"]
