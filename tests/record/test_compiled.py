"""Compiled models: recorded steps run eagerly and agree within the format; the others stay compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.record import recording
from roundoff.runs import Run


def train(*, num_steps: int) -> tuple[list[float], nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    model = torch.compile(plain, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, plain, model


@pytest.mark.slow
def test_a_compiled_model_is_recorded_eagerly_and_agrees_within_its_format(tmp_path: Path) -> None:
    losses, plain, _ = train(num_steps=4)
    torch.compiler.reset()
    with recording(to=tmp_path / "run", steps=[1]):
        recorded_losses, recorded, _ = train(num_steps=4)
    assert torch.allclose(torch.tensor(losses), torch.tensor(recorded_losses), rtol=1e-5)
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    events = Run.open(tmp_path / "run").events().to_pylist()
    assert {e["step"] for e in events} == {1}
    assert {"0", "1", "2"} <= {e["site"] for e in events if e["phase"] == "forward"}
    assert {"0", "1", "2"} <= {e["site"] for e in events if e["phase"] == "backward"}
    torch.compiler.reset()
