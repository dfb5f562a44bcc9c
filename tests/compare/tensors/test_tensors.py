"""Whole folders of tensors, and whole tensors of two runs: the first that differs is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from roundoff import Run, recording, save_tensor
from roundoff.compare.tensors.tensor_comparison import TensorVerdict, compare_tensors
from roundoff.compare.tensors.tensor_files import tensors_of_step
from roundoff.errors import CompareError

NAMES = ["conv1", "bn1", "pool", "fc", "loss"]


def save_all(folder: Path, *, names: list[str] = NAMES, wrong: str | None = None, dtype: torch.dtype | None = None):
    """Save what a forward computes; from the wrong one on everything is off."""
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    for name, plain in zip(names, NAMES, strict=True):
        x = torch.tanh(x * 1.1)
        if plain == wrong:
            x = x * 1.05
        save_tensor(name, x if dtype is None else x.to(dtype), to=folder)
    return folder


def test_equal_folders_agree_bit_for_bit(tmp_path: Path):
    found = compare_tensors(save_all(tmp_path / "a"), save_all(tmp_path / "b"))
    assert not found.differs
    assert [pair.verdict for pair in found.pairs] == [TensorVerdict.EQUAL] * 5


@pytest.mark.parametrize("wrong", NAMES)
def test_names_the_first_tensor_that_differs(tmp_path: Path, wrong: str):
    found = compare_tensors(save_all(tmp_path / "a"), save_all(tmp_path / "b", wrong=wrong))
    assert found.first is not None
    assert found.first.reference == f"{NAMES.index(wrong):05}-{wrong}"
    assert len(found.of_verdict(TensorVerdict.EQUAL)) == NAMES.index(wrong)


def test_a_narrower_format_alone_is_no_mismatch(tmp_path: Path):
    found = compare_tensors(save_all(tmp_path / "a"), save_all(tmp_path / "b", dtype=torch.bfloat16))
    assert not found.differs
    assert [pair.verdict for pair in found.pairs] == [TensorVerdict.EXPLAINED] * 5
    assert found.largest is not None
    assert found.largest.dtypes == ("float32", "bfloat16")


def test_names_it_under_other_names_and_in_another_format(tmp_path: Path):
    others = ["Conv2d", "BatchNorm", "MaxPool", "Dense", "Loss"]
    save_all(tmp_path / "b", names=others, wrong="pool", dtype=torch.bfloat16)
    found = compare_tensors(save_all(tmp_path / "a"), tmp_path / "b")
    assert found.first is not None
    assert (found.first.reference, found.first.candidate) == ("00002-pool", "00002-MaxPool")
    assert found.first.by == "order"


def test_shapes_that_differ_are_a_mismatch_in_their_place(tmp_path: Path):
    for folder, shape in (("a", (2, 3)), ("b", (3, 2))):
        save_tensor("x", np.zeros(4), to=tmp_path / folder)
        save_tensor("y", np.zeros(shape), to=tmp_path / folder)
    found = compare_tensors(tmp_path / "a", tmp_path / "b")
    assert found.first is not None
    assert (found.first.verdict, found.first.shapes) == (TensorVerdict.OTHER_SHAPE, ((2, 3), (3, 2)))


def test_dimensions_of_one_do_not_matter(tmp_path: Path):
    save_tensor("x", np.arange(6.0).reshape(1, 6), to=tmp_path / "a")
    save_tensor("x", np.arange(6.0), to=tmp_path / "b")
    assert not compare_tensors(tmp_path / "a", tmp_path / "b").differs


def test_what_has_no_partner_is_listed_and_counts(tmp_path: Path):
    for folder, names in (("a", ("x", "gone")), ("b", ("x",))):
        for name in names:
            save_tensor(name, np.zeros(len(name)), to=tmp_path / folder)
    found = compare_tensors(tmp_path / "a", tmp_path / "b")
    assert found.differs
    assert found.first is None
    assert [tensor.name for tensor in found.only_reference] == ["00001-gone"]
    assert found.only_candidate == ()


def test_folders_that_share_nothing_are_an_error(tmp_path: Path):
    save_tensor("x", np.zeros(2), to=tmp_path / "a")
    save_tensor("y", np.zeros(3), to=tmp_path / "b")
    with pytest.raises(CompareError, match="neither names nor shapes agree"):
        compare_tensors(tmp_path / "a", tmp_path / "b")


class Scaled(nn.Linear):
    """A layer that can be made wrong."""

    def __init__(self, factor: float) -> None:
        super().__init__(16, 16)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


def recorded(folder: Path, *, factor: float = 1.0) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Scaled(factor), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, to=folder, steps=[0], level="tensors"):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Run.open(folder)


def test_whole_tensors_of_two_equal_runs_agree(tmp_path: Path):
    found = compare_tensors(tensors_of_step(recorded(tmp_path / "a"), 0), tensors_of_step(recorded(tmp_path / "b"), 0))
    assert not found.differs
    assert {pair.verdict for pair in found.pairs} == {TensorVerdict.EQUAL}


def test_whole_tensors_of_two_runs_differ_first_where_one_was_made_wrong(tmp_path: Path):
    found = compare_tensors(
        tensors_of_step(recorded(tmp_path / "a"), 0), tensors_of_step(recorded(tmp_path / "b", factor=1.05), 0)
    )
    assert found.first is not None
    assert found.first.reference == "forward/0/2/aten.mul#0:output0"
    assert found.first.distance is not None
    assert found.first.distance.relative == pytest.approx(0.05, rel=1e-3)
