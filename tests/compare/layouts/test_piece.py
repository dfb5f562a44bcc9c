"""Parts are found in wholes by shape and by values."""

from __future__ import annotations

import numpy as np
import pytest

from roundoff.compare.layouts.measured_tensor import MeasuredTensor, fit, fit_pieces, fit_sum
from roundoff.compare.layouts.parameter_parts import placed_pieces
from roundoff.compare.layouts.part_verdict import Agreement, PartHolder, judge_parts
from roundoff.compare.layouts.piece import WHOLE, Cut, Piece, matching_pieces, possible_pieces
from roundoff.compare.layouts.rank_mesh import RankMesh, describe_ranks
from roundoff.errors import UsageError
from roundoff.runs import TensorPlacement
from tests.compare.layouts.made_tensors import measured

WHOLE_VALUES = np.random.default_rng(0).standard_normal((8, 12))


@pytest.mark.parametrize(
    ("part", "cut"),
    [
        (WHOLE_VALUES[4:], Cut(0, 4, 4)),
        (WHOLE_VALUES[:, 3:6], Cut(1, 3, 3)),
        (WHOLE_VALUES[1::2], Cut(0, 1, 4, 2)),
        (WHOLE_VALUES[[2, 3, 4, 5]], Cut(0, 2, 4, second=4)),
        (WHOLE_VALUES[5:], Cut(0, 5, 3)),
        (WHOLE_VALUES[[0, 1, 4, 5]], Cut(0, 0, 4, rows=(0, 1, 4, 5))),
    ],
    ids=["rows", "columns", "every other row", "two stretches", "an uneven rest", "any rows"],
)
def test_a_part_is_found_by_its_values(part: np.ndarray, cut: Cut):
    assert matching_pieces(measured(part), measured(WHOLE_VALUES)) == [Piece((cut,))]
    np.testing.assert_array_equal(Piece((cut,)).take(WHOLE_VALUES), part)


def test_what_is_no_part_is_not_found():
    assert matching_pieces(measured(WHOLE_VALUES[:4] + 1), measured(WHOLE_VALUES)) == []
    assert possible_pieces((8, 13), (8, 12)) == possible_pieces((8,), (8, 12)) == []


def test_a_part_in_two_dimensions_is_found():
    (piece,) = matching_pieces(measured(WHOLE_VALUES[4:, :6]), measured(WHOLE_VALUES))
    assert piece.dims == (0, 1)


def holders(*parts: np.ndarray, values: bool = True, piece: Piece = WHOLE) -> list[PartHolder]:
    return [PartHolder((rank,), measured(part, values=values), (piece,), None) for rank, part in enumerate(parts)]


@pytest.mark.parametrize("values", [True, False], ids=["values", "summaries"])
def test_sums_that_were_not_added_up_are_recognised(values: bool):
    rest = np.random.default_rng(1).standard_normal(WHOLE_VALUES.shape)
    verdict = judge_parts(holders(WHOLE_VALUES - rest, rest, values=values), measured(WHOLE_VALUES, values=values))
    assert (verdict.agreement, verdict.classes) == (Agreement.PARTIAL, ((0,), (1,)))
    assert verdict.factor == pytest.approx(1, abs=1e-5)
    mean = judge_parts(
        holders(2 * (WHOLE_VALUES - rest), 2 * rest, values=values), measured(WHOLE_VALUES, values=values)
    )
    assert mean.is_mean


@pytest.mark.parametrize("values", [True, False], ids=["values", "summaries"])
def test_multiples_and_differences_are_distinguished(values: bool):
    whole = measured(WHOLE_VALUES, values=values)
    other = np.random.default_rng(2).standard_normal(WHOLE_VALUES.shape)
    scaled = judge_parts(holders(2 * WHOLE_VALUES, 2 * WHOLE_VALUES, values=values), whole)
    assert (scaled.agreement, round(scaled.factor, 4)) == (Agreement.SCALED, 2.0)
    uneven = judge_parts(holders(2 * WHOLE_VALUES, 3 * WHOLE_VALUES, values=values), whole)
    assert (uneven.agreement, uneven.classes) == (Agreement.UNEVEN, ((0,), (1,)))
    assert judge_parts(holders(WHOLE_VALUES, other, values=values), whole).agreement is Agreement.DIFFERENT
    noise = WHOLE_VALUES * (1 + 1e-6 * other)
    assert judge_parts(holders(noise, WHOLE_VALUES, values=values), whole).agreement is Agreement.EQUAL


def test_parts_without_values_are_judged_by_what_adds_up():
    parts = [measured(part, values=False) for part in np.array_split(WHOLE_VALUES, 2)]
    whole = measured(WHOLE_VALUES, values=False)
    assert fit_pieces(parts, whole).is_equal(1e-6)
    assert fit(parts[0], whole).residual == np.inf
    assert fit_sum([whole, whole], whole).factor == pytest.approx(2)
    unknown = judge_parts([PartHolder((rank,), part, (), 0) for rank, part in enumerate(parts)], whole)
    assert (unknown.agreement, "record --level tensors" in unknown.why_not) == (Agreement.UNKNOWN, True)


def test_placements_of_dtensors_become_parts():
    placed = TensorPlacement(
        step=0, kind="parameter", name="w", shape=(5, 8), mesh={"dp": 2, "tp": 2}, coordinate=(1, 1),
        placements=("shard(0)", "shard(1)"),
    )  # fmt: skip
    assert placed_pieces([placed]) == {"w": Piece((Cut(0, 3, 2), Cut(1, 4, 4)))}


def test_groups_of_ranks_are_named_by_the_mesh():
    mesh = RankMesh.parse("pp=2, dp=2,tp=2")
    assert (mesh.num_ranks, mesh.coordinates(5)) == (8, {"pp": 1, "dp": 0, "tp": 1})
    assert describe_ranks([[0, 1], [2, 3]], mesh) == "dp"
    assert describe_ranks([[0], [1], [2], [3]], mesh) == "dp x tp"
    assert mesh.products()["dp x tp"] == 4


@pytest.mark.parametrize("text", ["tp", "tp=0", "tp=2,tp=2", "=2", "tp=x"])
def test_an_invalid_mesh_is_refused(text: str):
    with pytest.raises(UsageError, match="Invalid mesh"):
        RankMesh.parse(text)


def test_a_tensor_keeps_its_summary_with_other_values():
    assert isinstance(measured(WHOLE_VALUES).with_values(WHOLE_VALUES[:2]), MeasuredTensor)
