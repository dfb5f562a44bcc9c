"""Ops whose result for a sample depends on its batch are found, each by itself; those that only inherit are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.replay.invariance import NUM_PADDED, PlayedBatch, played_batches
from roundoff.replay.replayed_step import ReplayedCodeRaised
from tests.replay.taped import taped

PADDED = f"with {NUM_PADDED} more columns of padding"


def batches_of(
    folder: Path, model: nn.Module, inputs: tuple[Tensor, ...], *, loss: Callable[[Any], Tensor], **options: Any
) -> dict[str, PlayedBatch]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> nn.Module:
        optimizer.zero_grad()
        loss(model(*inputs)).backward()
        optimizer.step()
        return model

    return {batch.name: batch for batch in played_batches(taped(folder / "run", step).replayed_step(), **options)[2]}


def varying(batches: dict[str, PlayedBatch]) -> dict[str, list[str]]:
    return {name: [f"{op.site} {op.op}" for op in batch.ops] for name, batch in batches.items() if batch.ops}


class Scale(nn.Module):
    """Rounds to a grid that the largest number of the whole batch sets."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.detach().abs().max() / 7
        return scale * (x / scale).round()


def test_a_scale_over_the_whole_batch_is_found_and_what_comes_after_it_is_not_blamed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Scale(), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(6, 4)
    x[0] *= 100
    batches = batches_of(tmp_path, model, (x,), loss=lambda y: y.square().mean(), sample=3)
    found = varying(batches)
    assert set(found) == {"alone", "in half of the batch", "beside copies of itself"}
    assert {op.partition(" ")[0] for ops in found.values() for op in ops} == {"1"}
    assert all(op.difference > 0.01 for batch in batches.values() for op in batch.ops)
    (source,) = {op.source for batch in batches.values() for op in batch.ops}
    assert source is not None
    assert source.startswith("tests/replay/test_invariance.py:")


def test_a_difference_of_one_rounding_is_found(tmp_path: Path) -> None:
    class Rounding(nn.Module):
        """Rounds once more at the odd places of a batch."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.where((torch.arange(len(x)) % 2 == 0)[:, None], x, x * 3 / 3)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), Rounding())
    found = batches_of(tmp_path, model, (torch.randn(8, 8),), loss=torch.mean, sample=4)
    (op,) = found["at another place"].ops
    assert (op.op, op.site, op.result) == ("aten.where", "1", "float32[8x64]")
    assert 0 < op.difference < 1e-6


@pytest.mark.parametrize("kind", ["conv", "batch norm", "attention", "gru"])
def test_models_whose_samples_are_apart_play_the_same_in_half_of_the_batch(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 8)
    model: nn.Module = {
        "conv": nn.Sequential(nn.Conv1d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(30, 2)),
        "batch norm": nn.Sequential(nn.Conv1d(6, 5, 3), nn.BatchNorm1d(5), nn.Flatten(), nn.Linear(30, 2)),
        "attention": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        "gru": nn.GRU(8, 8, batch_first=True),
    }[kind]
    batches = batches_of(tmp_path, model, (x,), loss=lambda y: (y[0] if kind == "gru" else y).square().mean())
    assert not batches["played again"].ops
    for name in ("in half of the batch", "at another place", "beside copies of itself"):
        assert batches[name].num_compared > 1
        # Kernels may add up in another order; values of other samples do not come in.
        assert all(op.difference < 1e-5 for op in batches[name].ops), batches[name]


class Pooled(nn.Module):
    """Reads tokens with or without heed to their padding."""

    def __init__(self, *, heeds: bool) -> None:
        super().__init__()
        self.heeds = heeds
        self.embedding = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.layer(self.embedding(ids), src_key_padding_mask=mask == 0)
        if self.heeds:
            return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return self.head(x.mean(1))


@pytest.mark.parametrize("heeds", [True, False])
def test_padding_that_counts_is_found_where_it_comes_in(tmp_path: Path, heeds: bool) -> None:
    torch.manual_seed(0)
    ids, mask = torch.randint(1, 20, (6, 5)), torch.ones(6, 5)
    ids[:, 3:], mask[:, 3:] = 0, 0
    target = torch.randint(0, 3, (6,))
    batches = batches_of(tmp_path, Pooled(heeds=heeds), (ids, mask), loss=lambda y: F.cross_entropy(y, target))
    large = [f"{op.site} {op.op}" for op in batches[PADDED].ops if op.difference > 1e-3]
    assert large == ([] if heeds else ["<model> aten.mean"])


def test_time_may_come_first(tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, 8, (4,))
    batches = batches_of(
        tmp_path, nn.GRU(8, 8), (torch.randn(10, 4, 8),), loss=lambda y: F.cross_entropy(y[0][-1], target)
    )
    assert all(op.difference < 1e-5 for batch in batches.values() for op in batch.ops)
    assert batches["alone"].num_compared


def test_without_padding_tokens_or_samples_that_is_said(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    batches = batches_of(tmp_path, model, (torch.randn(4, 3),), loss=torch.mean)
    assert batches[PADDED].why_not == "the model gets no token ids"
    with pytest.raises(ReplayedCodeRaised, match="4 samples"):
        batches_of(tmp_path / "a", model, (torch.randn(4, 3),), loss=torch.mean, sample=4)
    with pytest.raises(ReplayedCodeRaised, match="a single sample"):
        batches_of(tmp_path / "b", model, (torch.randn(1, 3),), loss=torch.mean)
