"""Whatever the names and shapes, a pairing is one to one, complete, and lays over each other only what fits."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.pairing import Pairing, pair_checkpoints

WORDS = [
    "a",
    "conv",
    "conv2d_1",
    "bn1",
    "0",
    "1",
    "12",
    "layers",
    "q_proj",
    "module",
    "dense",
    "dense_10",
    "emb",
    "",
    "params",
]
LEAVES = [
    "weight",
    "bias",
    "kernel",
    "gamma",
    "scale",
    "running_mean",
    "num_batches_tracked",
    "exp_avg",
    "step",
    "x",
    "vars/0",
]
PREFIXES = ["", "moments.", "optimizer.state.", "optimizer.state.0."]
SHAPES = [(), (1,), (4,), (4, 4), (4, 3), (3, 4), (4, 1, 3, 3), (3, 3, 1, 4), (2, 2, 2), (0, 4)]
FORMATS = ["torch-zip", "paddle", "keras", "flax", "mindspore"]

names = st.builds(
    lambda prefix, path, leaf, mark: prefix + mark.join([*path, leaf]),
    st.sampled_from(PREFIXES),
    st.lists(st.sampled_from(WORDS), max_size=3),
    st.sampled_from(LEAVES),
    st.sampled_from([".", "/"]),
)
checkpoints = st.dictionaries(names, st.tuples(st.sampled_from(SHAPES), st.sampled_from(list(Role))), max_size=25)


def entries(drawn: dict[str, tuple[tuple[int, ...], Role]]) -> dict[str, Entry]:
    return {n: Entry(name=n, shape=shape, dtype="float32", role=role) for n, (shape, role) in drawn.items()}


def check(found: Pairing, reference: dict[str, Entry], candidate: dict[str, Entry]) -> None:
    references = [each.reference for each in found.pairs] + [each.name for each in found.only_reference]
    candidates = [each.candidate for each in found.pairs] + [each.name for each in found.only_candidate]
    assert sorted(references) == sorted(reference)
    assert sorted(candidates) == sorted(candidate)
    for each in found.pairs:
        shape = candidate[each.candidate].shape
        laid = shape if each.axes is None else tuple(shape[axis] for axis in each.axes)
        assert [size for size in laid if size != 1] == [size for size in reference[each.reference].shape if size != 1]
        assert (reference[each.reference].role is Role.OPTIMIZER) == (candidate[each.candidate].role is Role.OPTIMIZER)


@settings(max_examples=300, deadline=None)
@given(checkpoints, checkpoints, st.sampled_from(list(itertools.product(FORMATS, FORMATS))))
def test_a_pairing_holds_together(first, second, formats):
    reference, candidate = entries(first), entries(second)
    found = pair_checkpoints(reference, candidate, reference_format=formats[0], candidate_format=formats[1])
    check(found, reference, candidate)
    assert found == pair_checkpoints(reference, candidate, reference_format=formats[0], candidate_format=formats[1])


@settings(max_examples=200, deadline=None)
@given(checkpoints, st.randoms(use_true_random=False))
def test_a_checkpoint_in_any_order_is_paired_with_itself(drawn, random):
    reference = entries(drawn)
    shuffled = list(reference)
    random.shuffle(shuffled)
    candidate = {name: reference[name] for name in shuffled}
    found = pair_checkpoints(reference, candidate, reference_format="torch-zip", candidate_format="torch-legacy")
    check(found, reference, reference)
    assert all(each.reference == each.candidate for each in found.pairs)
    assert not found.only_reference
