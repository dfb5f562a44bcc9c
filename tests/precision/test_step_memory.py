"""A step under a recipe can be run again, and undone, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from roundoff.precision import apply_recipe
from roundoff.torch_private import preserved_versions


def trained(recipe: str, **settings: Any) -> tuple[nn.Module, Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, wrapped = apply_recipe(model, optimizer, recipe, **settings)
    batches = [torch.randn(16, 6) for _ in range(6)]
    for x in batches[:3]:
        step(model, wrapped, x)
    return model, wrapped, batches[3:]


def step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> float:
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 3)
    optimizer.zero_grad()
    optimizer.backward(loss)
    optimizer.step()
    return float(loss.detach())


def tensors(model: nn.Module, optimizer: Any) -> list[torch.Tensor]:
    """Return the very tensors that a step changes."""
    found = [*model.parameters(), *model.buffers()]
    for group in optimizer.param_groups:
        found += [main for main in group["params"] if all(main is not x for x in found)]
    for state in optimizer.state.values():
        found += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return [x.data for x in found]


@pytest.mark.parametrize("recipe", ["fp32", "O1", "O2", "O3", "bf16", "bf16-stochastic", "fixed", "fp8-delayed"])
def test_a_step_is_repeated_and_leaves_no_trace(recipe: str) -> None:
    model, optimizer, (x, *rest) = trained(recipe)
    memory, live = optimizer.remember(), tensors(model, optimizer)
    before = [copy.clone() for copy in live]
    first = step(model, optimizer, x)
    after = [copy.clone() for copy in live]
    scale, skips = optimizer.scale, optimizer.num_skips

    with optimizer.repeating(memory), preserved_versions(list(model.parameters())):
        for copy, kept in zip(live, before, strict=True):
            copy.copy_(kept)
        assert step(model, optimizer, x) == first
        assert all(torch.equal(a, b) for a, b in zip(live, after, strict=True))
    assert (optimizer.scale, optimizer.num_skips) == (scale, skips)

    twin, other, others = trained(recipe)
    step(twin, other, others[0])
    for batch in rest:
        assert step(model, optimizer, batch) == step(twin, other, batch)


def test_a_repeated_step_is_not_logged(tmp_path: Path) -> None:
    model, optimizer, (x, *_) = trained("O2", log=tmp_path / "scale.csv")
    memory = optimizer.remember()
    step(model, optimizer, x)
    logged = (tmp_path / "scale.csv").read_text()
    with optimizer.repeating(memory):
        step(model, optimizer, x)
    assert (tmp_path / "scale.csv").read_text() == logged
    assert len(logged.splitlines()) == 4
