"""Gradients that ranks added up instead of averaging them."""

from pathlib import Path

import numpy as np
import pytest

from roundoff.compare.runs.run_comparison import differing_aggregation
from roundoff.runs import Interned, ParameterColumns, Run
from tests.run_folders import write_run


def watched(folder: Path, *, ranks: int, norms: dict[str, float]) -> Run:
    return write_run(folder, columns(norms), ranks=ranks)


def columns(norms: dict[str, float]) -> ParameterColumns:
    num = len(norms)
    return ParameterColumns(
        step=np.zeros(num, dtype=np.int32),
        parameter=Interned.of(list(norms)),
        site=Interned.constant("<model>", num),
        num_elements=np.full(num, 4),
        l2=np.ones(num),
        absmax=np.ones(num),
        grad_l2=np.array(list(norms.values())),
    )


@pytest.mark.parametrize(("ranks", "factor"), [(2, 2.0), (4, 0.25)])
def test_a_factor_in_most_gradients_is_reported(tmp_path: Path, ranks: int, factor: float):
    reference = watched(tmp_path / "a", ranks=1, norms={"a": 1.0, "b": 2.0, "c": 1e-9})
    candidate = watched(tmp_path / "b", ranks=ranks, norms={"a": factor, "b": 2.1 * factor, "c": 1.0})
    found = differing_aggregation(reference, candidate)
    assert found is not None
    assert found.cause == "collective"
    assert found.factor == pytest.approx(factor, rel=0.05)


def test_averages_and_equal_numbers_of_ranks_are_fine(tmp_path: Path):
    reference = watched(tmp_path / "a", ranks=1, norms={"a": 1.0, "b": 2.0})
    assert differing_aggregation(reference, watched(tmp_path / "b", ranks=2, norms={"a": 1.05, "b": 1.9})) is None
    assert differing_aggregation(reference, watched(tmp_path / "c", ranks=1, norms={"a": 9.0, "b": 9.0})) is None
