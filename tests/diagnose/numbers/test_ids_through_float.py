"""Ids that a narrow format rounded are named by the cast, or by what is left of them; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.diagnose.numbers.rounding_damage import ids_through_float
from roundoff.runs import Run
from roundoff.watch.watching import watching


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(6000, 4)
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids.to(self.dtype).long())


def trained(folder: Path, *, inside: torch.dtype = torch.int64, before: torch.dtype = torch.int64, most: int) -> Run:
    torch.manual_seed(0)
    model = Model(inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, to=folder):
        for _ in range(3):
            ids = torch.randint(0, most, (8, 6)).to(before).long()
            model(ids).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return Run.open(folder)


def test_the_cast_inside_the_model_is_named(tmp_path: Path) -> None:
    (finding,) = ids_through_float(trained(tmp_path / "run", inside=torch.float16, most=5900))
    assert (finding.rule, finding.step, finding.op) == ("ids-through-float", 0, "aten._to_copy#0")
    assert "2049 is the first that changes" in finding.why


@pytest.mark.parametrize(("dtype", "first_wrong"), [(torch.float16, 2049), (torch.bfloat16, 257)], ids=["fp16", "bf16"])
def test_ids_that_were_rounded_before_are_known_by_their_values(
    dtype: torch.dtype, first_wrong: int, tmp_path: Path
) -> None:
    (finding,) = ids_through_float(trained(tmp_path / "run", before=dtype, most=5900))
    assert (finding.site, finding.op) == ("embed", "aten.embedding#0")
    assert f"{first_wrong} is the first" in finding.why


@pytest.mark.parametrize(
    ("inside", "most"), [(torch.float32, 5900), (torch.float16, 2000), (torch.int64, 5900)], ids=["fp32", "few", "int"]
)
def test_ids_that_stay_themselves_are_silent(inside: torch.dtype, most: int, tmp_path: Path) -> None:
    assert ids_through_float(trained(tmp_path / "run", inside=inside, most=most)) == []
