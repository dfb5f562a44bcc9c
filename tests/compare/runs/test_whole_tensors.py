"""Runs that kept their tensors are measured by them."""

from pathlib import Path

import pytest

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.record import recording
from roundoff.runs import Run
from tests.compare.variants import Variant, transformer_training


def recorded(folder: Path, variant: Variant, *, level: str = "tensors") -> Run:
    train = transformer_training(variant, num_steps=1)
    with recording(to=folder, steps=[0], level=level, inputs=True):
        train()
    return Run.open(folder)


def test_the_distance_is_exact_where_both_kept_their_tensors(tmp_path: Path):
    reference = recorded(tmp_path / "a", Variant())
    variant = Variant(attention_scale=1.001)
    whole = compare_runs(reference, recorded(tmp_path / "b", variant)).divergence
    sketched = compare_runs(reference, recorded(tmp_path / "c", variant, level="summary")).divergence
    assert whole is not None
    assert sketched is not None
    assert (whole.site, whole.op) == (sketched.site, sketched.op) == ("blocks.1.attn", "aten.mul#0")
    assert whole.relative == pytest.approx(0.001 / 1.001, rel=1e-3)
    assert sketched.relative == pytest.approx(whole.relative, rel=0.7)


def test_the_same_tensors_are_identical(tmp_path: Path):
    reference = recorded(tmp_path / "a", Variant())
    assert compare_runs(reference, recorded(tmp_path / "b", Variant())).is_identical
