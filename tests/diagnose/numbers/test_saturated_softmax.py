"""Attention with all its weight in one place is named, fused or not; ordinary and masked attention are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose.numbers.saturated_softmax import saturated_softmaxes
from roundoff.record import recording
from roundoff.runs import Run


class Attention(nn.Module):
    def __init__(self, *, is_fused: bool, factor: float, is_causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)
        self.is_fused, self.factor, self.is_causal = is_fused, factor, is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q * self.factor, k * self.factor
        if self.is_fused:
            return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=self.is_causal)
        logits = q @ k.transpose(1, 2) / 4
        if self.is_causal:
            logits = logits.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -torch.inf)
        return logits.softmax(-1) @ v


def recorded(model: nn.Module, folder: Path) -> Run:
    with recording(model, to=folder, inputs=True):
        model(torch.randn(4, 12, 16)).sum().backward()
    return Run.open(folder)


@pytest.mark.parametrize("is_fused", [False, True], ids=["written out", "fused"])
def test_huge_logits_are_named(is_fused: bool, tmp_path: Path) -> None:
    (finding,) = saturated_softmaxes(recorded(Attention(is_fused=is_fused, factor=60.0), tmp_path / "run"))
    assert (finding.rule, finding.step, finding.site) == ("saturated-softmax", 0, "<model>")


@pytest.mark.parametrize("is_fused", [False, True], ids=["written out", "fused"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["open", "causal"])
def test_ordinary_attention_is_silent(is_fused: bool, is_causal: bool, tmp_path: Path) -> None:
    model = Attention(is_fused=is_fused, factor=2.0, is_causal=is_causal)
    assert saturated_softmaxes(recorded(model, tmp_path / "run")) == []
