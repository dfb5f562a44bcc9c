"""Plants what goes wrong with checkpoints and demands that it is named; an honest port is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.checkpoints.checkpoint import Checkpoint, Role, StoredTensor
from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.compare.checkpoints.checkpoint_comparison import CheckpointComparison, compare_checkpoints
from roundoff.compare.checkpoints.compared_pair import ComparedPair, PairKind


def checkpoint(tensors: Mapping[str, Tensor], *, format: str = "torch-zip", path: str = "a.pth") -> Checkpoint:
    stored = [
        StoredTensor(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            role=Role.BUFFER if "running" in name or "num_batches" in name else Role.PARAMETER,
            read=lambda tensor=tensor: tensor,
        )
        for name, tensor in tensors.items()
    ]
    return Checkpoint(path=Path(path), format=format, tensors=stored)


def trained(seed: int = 0) -> dict[str, Tensor]:
    """Return the state of a net whose values are no start values."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5))
    return {
        name: tensor if name.endswith("tracked") else torch.randn(tensor.shape) * 0.3 + 0.05
        for name, tensor in net.state_dict().items()
    }


def compared(reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor], **how: str) -> CheckpointComparison:
    return compare_checkpoints(checkpoint(reference), checkpoint(candidate, **how))


def kinds(found: CheckpointComparison) -> dict[str, PairKind]:
    return {each.pair.reference: each.kind for each in found.pairs if each.kind is not PairKind.EQUAL}


def the_one(found: CheckpointComparison, kind: PairKind) -> ComparedPair:
    (only,) = found.of_kind(kind)
    return only


def test_equal_checkpoints_do_not_differ():
    found = compared(trained(), trained())
    assert not found.differs
    assert not kinds(found)
    assert not found.is_one_training


def test_nan_is_equal_to_itself_and_zero_to_minus_zero():
    found = compared({"w": torch.tensor([float("nan"), 0.0, 1.0])}, {"w": torch.tensor([float("nan"), 0.0, 1.0])})
    assert not kinds(found)
    assert not kinds(compared({"w": torch.tensor([0.0, 1.0])}, {"w": torch.tensor([-0.0, 1.0])}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_what_a_narrower_format_explains_is_rounding(dtype: torch.dtype):
    reference = trained()
    found = compared(reference, {name: t.to(dtype) if t.is_floating_point() else t for name, t in reference.items()})
    assert not found.differs
    assert set(kinds(found).values()) <= {PairKind.ROUNDED}
    if dtype is not torch.float64:
        assert the_one(
            compared({"w": reference["4.weight"]}, {"w": reference["4.weight"].to(dtype)}), PairKind.ROUNDED
        ).note


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_rounding_of_the_smallest_numbers_is_rounding_too(dtype: torch.dtype):
    tiny = torch.finfo(dtype).smallest_normal * torch.rand(8, 8)
    assert kinds(compared({"w": tiny}, {"w": tiny.to(dtype)})) == {"w": PairKind.ROUNDED}
    far = tiny + 2 * torch.finfo(dtype).smallest_normal
    assert kinds(compared({"w": tiny}, {"w": far.to(dtype)})) == {"w": PairKind.DIFFERENT}


def test_values_that_went_through_a_narrow_format_once_are_reported():
    reference = {"w": trained()["2.weight"]}
    found = compared(reference, {"w": reference["w"].to(torch.bfloat16).float()})
    assert the_one(found, PairKind.ROUNDED).note == "to bfloat16"


def test_two_roundings_of_bfloat16_are_more_than_bfloat16_explains():
    reference = {"w": trained()["2.weight"]}
    found = compared(reference, {"w": (reference["w"] * 1.02).to(torch.bfloat16)})
    assert kinds(found) == {"w": PairKind.DIFFERENT}


def test_a_difference_is_measured():
    reference = {"w": torch.tensor([3.0, 4.0, 0.0])}
    far = the_one(compared(reference, {"w": torch.tensor([3.0, 4.0, 0.5])}), PairKind.DIFFERENT).distance
    assert far is not None
    assert far.largest == 0.5
    assert far.relative == pytest.approx(0.1)
    assert far.cosine == pytest.approx(25 / (5 * (25.25) ** 0.5))


def test_a_difference_is_measured_over_what_is_finite():
    reference = {"w": torch.tensor([3.0, 4.0, 1.0])}
    found = the_one(compared(reference, {"w": torch.tensor([3.0, 4.5, float("inf")])}), PairKind.DIFFERENT)
    assert found.note == "1 of its values are not finite, 0 of the reference's"
    assert found.distance is not None
    assert found.distance.largest == 0.5


def test_the_largest_difference_comes_first():
    reference = trained()
    candidate = reference | {"2.weight": reference["2.weight"] * 1.1, "4.weight": reference["4.weight"] * 1.5}
    assert list(kinds(compared(reference, candidate))) == ["4.weight", "2.weight"]


def test_a_square_matrix_that_was_transposed_by_mistake_is_found():
    reference = trained()
    found = compared(reference, reference | {"2.weight": reference["2.weight"].T.contiguous()})
    assert kinds(found) == {"2.weight": PairKind.TRANSPOSED}


def test_a_matrix_that_is_the_other_way_round_is_found():
    reference = trained()
    found = compared(reference, reference | {"4.weight": reference["4.weight"].T.contiguous()})
    assert kinds(found) == {"4.weight": PairKind.TRANSPOSED}


def test_a_square_kernel_that_was_not_transposed_is_found():
    weight = trained()["2.weight"]
    right = compared({"fc.weight": weight}, {"fc/kernel": weight.T.contiguous()}, format="keras")
    wrong = compared({"fc.weight": weight}, {"fc/kernel": weight}, format="keras")
    assert not kinds(right)
    assert kinds(wrong) == {"fc.weight": PairKind.TRANSPOSED}


def test_swapped_tensors_are_found_on_both_sides():
    reference = trained()
    swapped = {"2.weight": reference["3.weight"], "3.weight": reference["2.weight"]}
    found = compared(reference, reference | swapped)
    assert kinds(found) == {"2.weight": PairKind.SWAPPED, "3.weight": PairKind.SWAPPED}
    assert {each.pair.reference: each.partner for each in found.of_kind(PairKind.SWAPPED)} == {
        "2.weight": "3.weight",
        "3.weight": "2.weight",
    }


def test_tensors_in_a_ring_are_swapped_too_in_a_narrower_format():
    reference = {f"fc{place}.weight": torch.randn(16, 16) for place in range(4)}
    candidate = {f"fc{place}.weight": reference[f"fc{(place + 1) % 4}.weight"].bfloat16() for place in range(4)}
    assert set(kinds(compared(reference, candidate)).values()) == {PairKind.SWAPPED}


def test_zeros_are_not_swapped_with_other_zeros():
    reference = {"a.bias": torch.zeros(8), "b.bias": torch.ones(8)}
    assert (
        PairKind.SWAPPED not in kinds(compared(reference, {"a.bias": torch.ones(8), "b.bias": torch.zeros(8)})).values()
    )


@pytest.mark.parametrize(
    ("start", "note"),
    [
        (nn.init.zeros_, "every value is 0"),
        (nn.init.ones_, "every value is 1"),
        (nn.init.xavier_uniform_, "it looks like initial values: xavier uniform"),
        (nn.init.xavier_normal_, "it looks like initial values: xavier normal"),
        (nn.init.kaiming_normal_, "it looks like initial values: kaiming normal"),
        (
            lambda w: nn.init.kaiming_uniform_(w, a=5**0.5),
            "it looks like initial values: kaiming uniform",
        ),
        (lambda w: nn.init.normal_(w, std=0.02), "it looks like initial values: normal 0.02"),
    ],
)
def test_a_matrix_that_was_not_loaded_is_reported_with_its_initialiser(start, note: str):
    torch.manual_seed(1)
    reference = {"fc.weight": torch.randn(96, 160) ** 3, "head.weight": torch.randn(7, 96)}
    found = compared(reference, reference | {"fc.weight": start(torch.empty(96, 160))})
    assert the_one(found, PairKind.NOT_LOADED).note == note
    assert found.pairs[0].kind is PairKind.NOT_LOADED


def test_the_bias_of_a_layer_that_was_not_loaded_goes_with_it():
    torch.manual_seed(2)
    fresh = nn.Linear(64, 32).state_dict()
    reference = {"fc.weight": torch.randn(32, 64) ** 3, "fc.bias": torch.randn(32)}
    found = compared(reference, {f"fc.{name}": value for name, value in fresh.items()})
    assert kinds(found) == {"fc.weight": PairKind.NOT_LOADED, "fc.bias": PairKind.NOT_LOADED}


def test_two_seeds_of_one_start_are_not_taken_for_a_loading_error():
    torch.manual_seed(3)
    first, second = ({"fc.weight": nn.Linear(64, 64).weight.detach()} for _ in range(2))
    found = the_one(compared(first, second), PairKind.DIFFERENT)
    assert found.note == "both look like start values, of different seeds"


def test_parameters_that_did_not_move_while_the_others_did_are_listed():
    reference = trained()
    candidate = {
        n: t if n.startswith("3.") or "num" in n else t + 0.01 * torch.randn(t.shape) for n, t in reference.items()
    }
    found = compared(reference, candidate)
    assert found.is_one_training
    assert [each.pair.reference for each in found.of_kind(PairKind.NOT_UPDATED)] == ["3.weight", "3.bias"]
    assert found.pairs[0].kind is PairKind.NOT_UPDATED


def test_a_training_that_moved_everything_has_nothing_that_did_not_move():
    reference = trained()
    found = compared(reference, {n: t if "num" in n else t + 0.01 * torch.randn(t.shape) for n, t in reference.items()})
    assert found.is_one_training
    assert not found.of_kind(PairKind.NOT_UPDATED)


def test_one_wrong_tensor_of_many_is_not_a_training():
    reference = trained()
    found = compared(reference, reference | {"2.weight": reference["2.weight"] * 1.1})
    assert not found.is_one_training
    assert kinds(found) == {"2.weight": PairKind.DIFFERENT}


def test_values_put_right_what_names_had_let_one_guess():
    reference = {f"{name}.weight": torch.randn(8, 8) for name in ("left", "right", "middle")}
    names = {"left": "x3", "right": "x1", "middle": "x2"}
    found = compared(reference, {f"{names[name.partition('.')[0]]}.weight": value for name, value in reference.items()})
    assert not found.differs
    assert {each.pair.reference: each.pair.candidate for each in found.pairs} == {
        f"{name}.weight": f"{other}.weight" for name, other in names.items()
    }
    assert PairedBy.VALUES in {each.pair.by for each in found.pairs}


def test_values_find_partners_that_names_did_not_tell():
    reference = {f"{name}.weight": torch.randn(8, 8) for name in ("left", "right", "middle")}
    found = compared(reference, {"x1.weight": reference["right.weight"], "x2.weight": reference["left.weight"]})
    assert {each.pair.reference: each.pair.candidate for each in found.pairs} == {
        "left.weight": "x2.weight",
        "right.weight": "x1.weight",
    }
    assert [each.name for each in found.missing[0]] == ["middle.weight"]
    assert found.differs


def test_whole_numbers_are_compared_as_such():
    found = compared({"ids": torch.arange(4)}, {"ids": torch.tensor([0, 1, 2, 5])})
    assert the_one(found, PairKind.DIFFERENT).note == "1 of 4 values"
    assert not kinds(compared({"ids": torch.arange(4)}, {"ids": torch.arange(4, dtype=torch.int32)}))


def test_a_whole_number_may_be_kept_as_a_float():
    assert not kinds(compared({"steps": torch.tensor(3)}, {"steps": torch.tensor(3.0)}))


def test_a_vector_that_was_constant_before_is_not_taken_for_one_that_was_not_loaded():
    assert kinds(compared({"bn.weight": torch.ones(8)}, {"bn.weight": torch.full((8,), 1.01)})) == {
        "bn.weight": PairKind.DIFFERENT
    }


def test_complex_numbers_are_compared_as_such():
    values = torch.randn(4, dtype=torch.complex64)
    assert not kinds(compared({"z": values}, {"z": values.clone()}))
    assert the_one(compared({"z": values}, {"z": values + 1j}), PairKind.DIFFERENT).note == "4 of 4 values"
