"""Two checkpoints of any frameworks are paired without a map, and leftovers are explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.layer_groups import read_optimizer_name
from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.checkpoints.pair.pairing import Pairing, pair_checkpoints
from roundoff.errors import CheckpointError

BUFFERS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance", "_mean", "_variance")


def entries(shapes: Mapping[str, Sequence[int]]) -> dict[str, Entry]:
    return {name: entry(name, tuple(shape)) for name, shape in shapes.items()}


def entry(name: str, shape: tuple[int, ...]) -> Entry:
    role = Role.BUFFER if name.endswith(BUFFERS) else Role.PARAMETER
    if name.startswith(("optimizer.", "moments.", "moment1.", "moment2.")) or "_moment1_0" in name:
        role = Role.OPTIMIZER
    return Entry(name=name, shape=shape, dtype="float32", role=role)


def paired(found: Pairing) -> dict[str, str]:
    return {each.reference: each.candidate for each in found.pairs}


def linears(*names: str, size: int = 8) -> dict[str, Entry]:
    return entries(
        {f"{name}.{leaf}": shape for name in names for leaf, shape in (("weight", (size, size)), ("bias", (size,)))}
    )


def kernels(*names: str, size: int = 8) -> dict[str, Entry]:
    return entries(
        {f"{name}/{leaf}": shape for name in names for leaf, shape in (("kernel", (size, size)), ("bias", (size,)))}
    )


def test_pairs_what_has_the_same_name():
    found = pair_checkpoints(linears("fc1", "fc2"), linears("fc1", "fc2"))
    assert all(each.by is PairedBy.SAME_NAME and each.axes is None for each in found.pairs)
    assert paired(found) == {name: name for name in linears("fc1", "fc2")}
    assert not found.only_reference
    assert not found.only_candidate


def test_drops_what_wrappers_add():
    found = pair_checkpoints(linears("stem.fc", "head"), linears("module._orig_mod.stem.fc", "module._orig_mod.head"))
    assert paired(found)["stem.fc.weight"] == "module._orig_mod.stem.fc.weight"
    assert {each.by for each in found.pairs} == {PairedBy.RULES}


@pytest.mark.parametrize("prefix", ["backbone", "model", "encoder.body"])
def test_drops_a_prefix_that_all_names_of_one_side_have(prefix: str):
    names = ("stem", "body.0", "body.1", "head")
    found = pair_checkpoints(linears(*names), linears(*(f"{prefix}.{name}" for name in names)))
    assert paired(found) == {name: f"{prefix}.{name}" for name in linears(*names)}


def test_finds_a_backbone_inside_of_a_larger_model():
    found = pair_checkpoints(linears("backbone.fc1", "backbone.fc2", "head.out"), linears("fc1", "fc2"))
    assert paired(found)["backbone.fc2.bias"] == "fc2.bias"
    assert [each.name for each in found.only_reference] == ["head.out.weight", "head.out.bias"]


def test_an_encoder_is_not_taken_for_the_decoder_that_has_the_same_endings():
    found = pair_checkpoints(linears("encoder.fc", "decoder.fc"), linears("decoder.fc"))
    assert paired(found) == {name: name for name in linears("decoder.fc")}


def test_the_same_name_wins_over_order():
    found = pair_checkpoints(linears("a", "b", "c"), linears("c", "a", "b"))
    assert paired(found) == {name: name for name in linears("a", "b", "c")}


def test_layers_of_one_shape_are_paired_by_their_numbers_whatever_the_order_of_the_file():
    names = [f"dense_{number}" if number else "dense" for number in range(12)]
    found = pair_checkpoints(linears(*(f"fc{number + 1}" for number in range(12))), kernels(*sorted(names)))
    assert paired(found) == {
        f"fc{number + 1}.{reference}": f"{names[number]}/{candidate}"
        for number in range(12)
        for reference, candidate in (("weight", "kernel"), ("bias", "bias"))
    }
    assert {each.by for each in found.pairs} == {PairedBy.POSITION}


def test_equal_numbers_mean_nothing_where_one_side_counts_other_things_too():
    found = pair_checkpoints(linears("net.0", "net.2", "net.4"), linears("net.0", "net.1", "net.2"))
    assert [paired(found)[f"net.{number}.weight"] for number in (0, 2, 4)] == [f"net.{n}.weight" for n in range(3)]


def test_counting_from_one_lines_up_with_counting_from_zero():
    found = pair_checkpoints(linears("blocks.0.fc", "blocks.1.fc"), linears("blocks.1.fc", "blocks.2.fc"))
    assert [each.candidate for each in found.pairs][::2] == ["blocks.1.fc.weight", "blocks.2.fc.weight"]


def test_a_layer_more_in_the_middle_leaves_the_others_to_their_names():
    found = pair_checkpoints(linears("fc1", "fc2", "fc3"), linears("fc1", "fc3"))
    assert paired(found) == {name: name for name in linears("fc1", "fc3")}
    assert [each.name for each in found.only_reference] == ["fc2.weight", "fc2.bias"]


def test_among_layers_of_one_shape_the_names_that_are_most_alike_belong_together():
    reference = [
        f"layers.{block}.attention.{name}" for block in range(3) for name in ("queries", "keys", "values", "outputs")
    ]
    candidate = [f"h.{block}.attn.{name}" for name in ("wk", "wo", "wq", "wv") for block in range(3)]
    found = pair_checkpoints(linears(*reference), linears(*candidate))
    short = {"queries": "wq", "keys": "wk", "values": "wv", "outputs": "wo"}
    assert paired(found) == {
        f"layers.{block}.attention.{name}.{leaf}": f"h.{block}.attn.{other}.{leaf}"
        for block in range(3)
        for name, other in short.items()
        for leaf in ("weight", "bias")
    }
    assert {each.by for each in found.pairs} == {PairedBy.EDIT_DISTANCE}


def test_the_only_layers_of_their_shapes_belong_together_whatever_their_names():
    reference = entries({"a.weight": (4, 3), "a.bias": (4,), "b.weight": (5, 4), "b.bias": (5,)})
    candidate = entries({"y.weight": (5, 4), "y.bias": (5,), "x.weight": (4, 3), "x.bias": (4,)})
    found = pair_checkpoints(reference, candidate)
    assert paired(found) == {"a.weight": "x.weight", "a.bias": "x.bias", "b.weight": "y.weight", "b.bias": "y.bias"}
    assert {each.by for each in found.pairs} == {PairedBy.SHAPE}


def test_inconclusive_names_are_left_unpaired_where_the_numbers_of_layers_differ():
    found = pair_checkpoints(linears("left", "right", "middle"), linears("x1", "x2"))
    assert not found.pairs
    assert len(found.only_reference) == 6
    assert found.only_reference[0].why == (
        "3 tensors of this shape remain here and 2 there, and their names do not match"
    )


def test_a_square_kernel_is_transposed_and_an_embedding_is_not():
    reference = entries({"embed.weight": (8, 8), "fc.weight": (8, 8), "fc.bias": (8,)})
    candidate = entries({"embed/embeddings": (8, 8), "fc/kernel": (8, 8), "fc/bias": (8,)})
    found = pair_checkpoints(reference, candidate, candidate_format="keras")
    assert {each.reference: each.axes for each in found.pairs} == {
        "embed.weight": None,
        "fc.weight": (1, 0),
        "fc.bias": None,
    }
    assert all(each.is_expected for each in found.pairs)


def test_paddle_has_its_linear_weights_the_other_way_round_but_not_its_embeddings():
    shapes = {"embed.weight": (8, 8), "fc.weight": (8, 8), "fc.bias": (8,), "conv.weight": (4, 4, 3, 3)}
    found = pair_checkpoints(entries(shapes), entries(shapes), candidate_format="paddle")
    assert [each.axes for each in found.pairs] == [None, (1, 0), None, None]
    both = pair_checkpoints(entries(shapes), entries(shapes), reference_format="paddle", candidate_format="paddle")
    assert [each.axes for each in both.pairs] == [None] * 4


def test_the_reference_may_be_the_one_with_the_other_layout():
    reference = entries({"conv/kernel": (3, 3, 2, 4), "fc/kernel": (5, 7)})
    found = pair_checkpoints(
        reference, entries({"conv.weight": (4, 2, 3, 3), "fc.weight": (7, 5)}), reference_format="keras"
    )
    assert [(each.axes, each.is_expected) for each in found.pairs] == [((2, 3, 1, 0), True), ((1, 0), True)]


def test_a_matrix_that_only_fits_transposed_is_paired_and_said_so():
    found = pair_checkpoints(entries({"fc.weight": (10, 5)}), entries({"fc.weight": (5, 10)}))
    assert [(each.axes, each.is_expected) for each in found.pairs] == [((1, 0), False)]


def test_axes_of_one_are_no_difference():
    found = pair_checkpoints(entries({"conv.weight": (6, 4, 3)}), entries({"conv.weight": (6, 4, 1, 3)}))
    assert [(each.axes, each.is_expected) for each in found.pairs] == [(None, True)]


def test_a_layer_without_bias_is_still_found_by_its_matrix():
    reference = entries({"fc.weight": (10, 5), "fc.bias": (10,)})
    found = pair_checkpoints(reference, entries({"dense/kernel": (5, 10)}))
    assert paired(found) == {"fc.weight": "dense/kernel"}
    assert [each.name for each in found.only_reference] == ["fc.bias"]


def test_the_same_name_with_another_shape_is_the_stated_reason():
    found = pair_checkpoints(entries({"head.weight": (1000, 16)}), entries({"head.weight": (10, 16)}))
    assert not found.pairs
    assert found.only_reference[0].why == "'head.weight' has the same name, but the shape (10, 16)"
    assert found.only_candidate[0].nearest == "head.weight"


def test_counters_of_batches_that_only_one_side_has_do_not_matter():
    batch_norm = {"weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,), "num_batches_tracked": ()}
    reference = entries({f"bn.{leaf}": shape for leaf, shape in batch_norm.items()})
    candidate = entries({"bn.gamma": (4,), "bn.beta": (4,), "bn.moving_mean": (4,), "bn.moving_variance": (4,)})
    found = pair_checkpoints(reference, candidate)
    assert paired(found)["bn.running_var"] == "bn.moving_variance"
    assert [(each.name, each.matters) for each in found.only_reference] == [("bn.num_batches_tracked", False)]


def test_moments_go_with_their_parameter_and_never_with_a_weight():
    reference = linears("fc1", "fc2") | entries(
        {f"optimizer.state.{number}.exp_avg": (8, 8) if number % 2 == 0 else (8,) for number in range(4)}
    )
    candidate = linears("dense_0", "dense_1") | entries(
        {
            f"moment1.dense_{number}.{leaf}": (8, 8) if leaf == "weight" else (8,)
            for leaf in ("bias", "weight")
            for number in range(2)
        }
    )
    found = pair_checkpoints(reference, candidate, candidate_format="mindspore")
    assert paired(found)["optimizer.state.2.exp_avg"] == "moment1.dense_1.weight"
    assert paired(found)["optimizer.state.1.exp_avg"] == "moment1.dense_0.bias"
    assert not found.only_reference
    assert not found.only_candidate


def test_moments_are_transposed_as_their_parameter_is():
    reference = linears("fc") | entries({"optimizer.state.fc.weight.exp_avg": (8, 8)})
    candidate = linears("fc") | entries({"fc.weight_moment1_0": (8, 8)})
    found = pair_checkpoints(reference, candidate, candidate_format="paddle")
    assert found.pairs[-1].candidate == "fc.weight_moment1_0"
    assert found.pairs[-1].axes == (1, 0)


def test_moments_without_their_parameters_line_up_among_themselves():
    reference = entries({"moment1.conv.weight": (4, 3, 3, 3), "moment1.fc.weight": (5, 4)})
    candidate = entries({"linear_0.w_0_moment1_0": (4, 5), "conv2d_0.w_0_moment1_0": (4, 3, 3, 3)})
    found = pair_checkpoints(reference, candidate, candidate_format="paddle")
    assert paired(found) == {
        "moment1.conv.weight": "conv2d_0.w_0_moment1_0",
        "moment1.fc.weight": "linear_0.w_0_moment1_0",
    }


@pytest.mark.parametrize(
    ("name", "others", "slot"),
    [
        ("accum.fc.weight", ["stat.fc.weight"], "momentum_buffer"),
        ("accum.fc.weight", ["accum_update.fc.weight"], "square_avg"),
        ("accum.fc.weight", [], "sum"),
        ("moment2.fc.weight", ["beta1_power", "beta2_power"], "exp_avg_sq"),
        ("moment2.fc.weight", ["beta1_power"], "exp_inf"),
        ("moment.fc.weight", ["mean_square.fc.weight"], None),
        ("moments.fc.weight", ["linear.fc.weight"], None),
        ("a.w_0_moment_0", ["a.w_0_inf_norm_0"], "exp_avg"),
        ("a.w_0_moment_0", [], "sum"),
        ("a.w_0_momentum_0", ["a.w_0_mean_square_0"], None),
        ("a.w_0_fp32_master_0_moment2_max_0", [], "max_exp_avg_sq"),
    ],
)
def test_a_word_means_what_its_optimizer_makes_of_it(name: str, others: list[str], slot: str | None):
    read = read_optimizer_name(name, parameters=[], others=others)
    assert (read and read.slot) == slot
    assert read is None or read.owner in ("fc.weight", "a.w_0")


def test_a_map_decides_what_names_do_not():
    found = pair_checkpoints(
        linears("a", "b"), linears("x", "y"), name_map={"a.*": "y.*", "b.weight": "x.weight", "b.bias": "x.bias"}
    )
    assert paired(found) == {"a.weight": "y.weight", "a.bias": "y.bias", "b.weight": "x.weight", "b.bias": "x.bias"}
    assert {each.by for each in found.pairs} == {PairedBy.MAP}


@pytest.mark.parametrize(
    ("name_map", "message"),
    [
        ({"nothing.weight": "x.weight"}, "'nothing.weight', which the reference does not have"),
        ({"a.weight": "z.weight"}, "'z.weight', which the candidate does not have"),
        ({"a.weight": "x.weight", "b.weight": "x.weight"}, "'x.weight' twice"),
        ({"a.weight": "x.bias"}, "(8, 8) and (8,)"),
        ({"c.*": "x.*"}, "'c.*', which the reference does not have"),
    ],
)
def test_a_map_that_cannot_be_is_an_error(name_map: dict[str, str], message: str):
    with pytest.raises(CheckpointError) as raised:
        pair_checkpoints(linears("a", "b"), linears("x", "y"), name_map=name_map)
    assert message in str(raised.value)


def test_every_pairing_is_one_to_one_and_the_same_again():
    reference = linears("a", "b", "net.0", "net.2", size=4) | linears("enc.q", "enc.k", "enc.v")
    candidate = linears("b", "x", "net.0", "net.1", size=4) | kernels("wk", "wq", "wv")
    found = pair_checkpoints(reference, candidate)
    assert len({each.reference for each in found.pairs}) == len({each.candidate for each in found.pairs})
    assert {each.reference for each in found.pairs} | {each.name for each in found.only_reference} == set(reference)
    assert found == pair_checkpoints(reference, candidate)


def test_names_that_differ_in_their_wrappers_alone_are_not_mixed_up():
    both = linears("fc", "module.fc", "other")
    less = {name: both[name] for name in reversed(list(both)) if not name.startswith("other")}
    assert paired(pair_checkpoints(both, less)) == {name: name for name in less}
