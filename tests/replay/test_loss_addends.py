"""The addends of a loss are found with their values and lines, however they are added up and multiplied."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from roundoff.record.source_lines import Sources
from roundoff.replay.loss_addends import AddendWatcher

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def in_place(x: Tensor) -> Tensor:
    loss = x.mean()
    loss += 0.5 * x.sum()
    return loss


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: x.mean() + x.sum(), [(2.5, 1), (10, 1)]),
        (lambda x: (x.mean() - 0.5 * x.sum()) / 3, [(2.5, 1), (5, 0.5)]),
        (lambda x: sum([x.mean(), x.sum() / 4, (x / 8).sum()]), [(2.5, 1), (2.5, 0.25), (1.25, 0.125)]),
        (in_place, [(2.5, 1), (5, 0.5)]),
        (lambda x: x.mean() + torch.tensor(2.0) * x.sum() * 3, [(2.5, 1), (60, 6)]),
        (lambda x: x.sum(), []),
        (lambda x: x.mean() + 1.0, []),
    ],
    ids=["plain", "scaled", "python sum", "in place", "tensor factor", "no sum", "a constant"],
)
def test_addends(loss: Callable[[Tensor], Tensor], expected: list[tuple[float, float]]) -> None:
    watcher = AddendWatcher(Sources())
    with watcher:
        total = loss(X.clone().requires_grad_())
    found = watcher.addends_of(total)
    assert watcher.failure is None
    assert [(pytest.approx(addend.value), pytest.approx(addend.factor)) for addend in found] == expected
    assert all(addend.source is not None and "test_loss_addends.py:" in addend.source for addend in found)
