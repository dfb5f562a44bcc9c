"""Which of two runs is nearer to fp64, from recordings with a reference."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.record import recording
from roundoff.report.comparisons.compared_runs import ComparedRuns
from roundoff.runs import Run


class Attention(nn.Module):
    def __init__(self, *, is_fused: bool) -> None:
        super().__init__()
        self.qkv, self._is_fused = nn.Linear(16, 48), is_fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(4, 10, 3, 2, 8).permute(2, 0, 3, 1, 4)
        if self._is_fused:
            return F.scaled_dot_product_attention(q, k, v)
        return ((q @ k.mT) / math.sqrt(8)).softmax(-1) @ v


def recorded(folder: Path, *, is_fused: bool = False, narrow: bool = False, reference: bool = True) -> Run:
    torch.manual_seed(0)
    model, x = Attention(is_fused=is_fused), torch.randn(4, 10, 16)
    with (
        recording(to=folder, inputs=True, reference="fp64" if reference else None),
        torch.autocast("cpu", torch.bfloat16, enabled=narrow),
    ):
        model(x).float().square().mean().backward()
    return Run.open(folder)


def test_every_op_of_the_narrow_run_is_farther_from_fp64(tmp_path: Path):
    errors = compare_runs(recorded(tmp_path / "wide"), recorded(tmp_path / "narrow", narrow=True)).fp64_errors
    softmax = next(error for error in errors if "softmax#" in error.reference_ops)
    assert (softmax.phase, softmax.nearer) == ("forward", "reference")
    assert softmax.reference < 1e-6 < 1e-4 < softmax.candidate < 1e-2
    products = [error for error in errors if "mm#" in error.reference_ops]
    assert [error.nearer for error in products] == ["reference"] * len(products)


def test_fused_ops_are_compared_with_those_they_replace(tmp_path: Path):
    comparison = compare_runs(recorded(tmp_path / "plain"), recorded(tmp_path / "fused", is_fused=True))
    fused = [error for error in comparison.fp64_errors if "attention" in error.candidate_ops]
    assert [error.phase for error in fused] == ["forward", "backward"]
    assert all("aten.bmm#0" in error.reference_ops and 0 < error.candidate < 1e-6 for error in fused)
    text = ComparedRuns(comparison=comparison, finding=None, reference="a", candidate="b").text(table=False, width=400)
    assert f"nearer to fp64, of {len(comparison.fp64_errors)} ops: the reference in " in text


def test_without_a_reference_nothing_is_said(tmp_path: Path):
    plain, again = (recorded(tmp_path / name, reference=False) for name in ("plain", "again"))
    assert compare_runs(plain, again).fp64_errors == ()
