"""Which saved tensor is which: by map, by name, else by order and shape."""

from __future__ import annotations

import pytest
import torch

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.compare.tensors.tensor_comparison import pair_saved
from roundoff.errors import CheckpointError


def saved(**shapes: tuple[int, ...]) -> list[StoredTensor]:
    return [one(name, shape) for name, shape in shapes.items()]


def one(name: str, shape: tuple[int, ...] = (2,)) -> StoredTensor:
    return StoredTensor(name=name, shape=shape, dtype="float32", read=lambda: torch.zeros(shape))


def paired(*args: list[StoredTensor], name_map: dict[str, str] | None = None) -> list[tuple[str, str, str]]:
    return [(pair.reference.name, pair.candidate.name, pair.by) for pair in pair_saved(*args, name_map=name_map)]


def test_equal_names_are_pairs_whatever_their_order():
    assert paired(saved(a=(2,), b=(3,)), saved(b=(3,), a=(2,))) == [("a", "a", "name"), ("b", "b", "name")]


def test_numbers_of_files_and_separators_of_words_do_not_count():
    reference = [one("00000-conv1"), one("00001-blocks_3_out")]
    candidate = [one("00000-extra", (9, 9)), one("00001-conv1"), one("blocks.3/Out")]
    assert paired(reference, candidate) == [
        ("00000-conv1", "00001-conv1", "name"),
        ("00001-blocks_3_out", "blocks.3/Out", "name"),
    ]


def test_the_nth_tensor_of_a_name_belongs_to_the_nth():
    reference = [one("00000-x"), one("00001-y"), one("00002-x")]
    candidate = [one("00000-x"), one("00001-x"), one("00002-y")]
    assert paired(reference, candidate) == [
        ("00000-x", "00000-x", "name"),
        ("00001-y", "00002-y", "name"),
        ("00002-x", "00001-x", "name"),
    ]


def test_names_that_are_equal_to_the_letter_go_first():
    reference, candidate = [one("x_1"), one("x.1")], [one("x.1"), one("x_1")]
    assert paired(reference, candidate) == [("x_1", "x_1", "name"), ("x.1", "x.1", "name")]


def test_equal_names_are_pairs_even_if_their_shapes_differ():
    assert paired(saved(a=(2, 3)), saved(a=(3, 2), b=(2, 3))) == [("a", "a", "name")]


def test_other_names_are_lined_up_by_order_and_shape():
    reference = saved(conv=(2, 3), bn=(2, 3), pool=(4,), loss=())
    candidate = saved(Conv2d_0=(2, 3), unknown=(7, 7), BatchNorm_0=(2, 3), avg=(1, 4), cost=())
    assert paired(reference, candidate) == [
        ("conv", "Conv2d_0", "order"),
        ("bn", "BatchNorm_0", "order"),
        ("pool", "avg", "order"),
        ("loss", "cost", "order"),
    ]


def test_a_map_goes_before_names():
    reference, candidate = saved(a=(2,), b=(2,)), saved(a=(2,), b=(2,))
    assert paired(reference, candidate, name_map={"a": "b"}) == [("a", "b", "map"), ("b", "a", "order")]


def test_a_map_may_leave_the_numbers_away_and_name_many_at_once():
    reference = [one("00000-conv1"), one("encoder.a"), one("encoder.b")]
    candidate = [one("00007-Conv2d"), one("backbone.b"), one("backbone.a")]
    assert paired(reference, candidate, name_map={"conv1": "Conv2d", "encoder.*": "backbone.*"}) == [
        ("00000-conv1", "00007-Conv2d", "map"),
        ("encoder.a", "backbone.a", "map"),
        ("encoder.b", "backbone.b", "map"),
    ]


def test_a_map_of_names_that_do_not_exist_is_an_error():
    with pytest.raises(CheckpointError, match="names 'c', which the reference does not have"):
        pair_saved(saved(a=(2,)), saved(a=(2,)), name_map={"c": "a"})


def test_nothing_in_common_is_no_pair():
    assert paired(saved(a=(2,)), saved(b=(3,))) == []
