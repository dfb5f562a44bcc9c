"""What is stored, and in which form: each piece of memory once, weights never, masks in bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.precision.activations import ActivationSettings
from roundoff.precision.activations.forward_saves import (
    Codes,
    ForwardSaves,
    Mask,
    NarrowIntegers,
    PackedTensor,
    UncompressedTensor,
    group_size,
)

SITE = "somewhere"


def saves(model: nn.Module | None = None, *, bits: int = 4, **settings: int) -> ForwardSaves:
    return ForwardSaves(model or nn.Identity(), settings=ActivationSettings(**settings), bits={SITE: bits}, key=1)


def packed_and_expanded(x: Tensor, *, bits: int = 8) -> tuple[PackedTensor, Tensor]:
    saved = saves(bits=bits).pack(x, site=SITE)
    return saved, saved.expand()


def test_a_tensor_saved_twice_is_stored_once():
    store, x = saves(), torch.randn(64, 64)
    first, second = store.pack(x, site=SITE), store.pack(x, site=SITE)
    assert first.form is second.form
    assert store.tallies[SITE].num_tensors == 1
    assert store.tallies[SITE].bytes_before == 64 * 64 * 4


def test_views_of_a_tensor_share_what_it_is_stored_as():
    store, x = saves(bits=8), torch.randn(16, 96)
    views = [x.view(4, 4, 96), x.t(), *x.chunk(3, dim=1), x[:, ::2], x[3]]
    packed = [store.pack(view, site=SITE) for view in views]
    assert len({id(saved.form) for saved in packed}) == 1
    for view, saved in zip(views, packed, strict=True):
        assert saved.expand().shape == view.shape
        assert torch.allclose(saved.expand(), view, atol=0.05)


def test_a_small_part_of_a_large_memory_is_stored_alone():
    large = torch.randn(100, 4096)
    saved, expanded = packed_and_expanded(large[3])
    assert saved.form.num_bytes < 4096 * 2
    assert torch.allclose(expanded, large[3], atol=0.05)


def test_a_small_kept_part_does_not_hold_the_large_memory():
    large = torch.randn(100, 4096)
    saved = saves().pack(large[:, 0], site=SITE)
    assert isinstance(saved.form, UncompressedTensor)
    assert saved.form.num_bytes == 400
    assert torch.equal(saved.expand(), large[:, 0])


def test_a_tensor_changed_in_place_is_stored_again():
    store, x = saves(bits=8), torch.randn(64, 64)
    first = store.pack(x, site=SITE)
    old = x.clone()
    x.add_(10)
    second = store.pack(x, site=SITE)
    assert torch.allclose(first.expand(), old, atol=0.05)
    assert torch.allclose(second.expand(), old + 10, atol=0.1)


def test_a_new_tensor_at_a_freed_address_is_not_taken_for_the_old_one():
    store = saves(bits=8)
    packed = []
    for value in range(50):
        x = torch.full((64, 64), float(value))
        packed.append(store.pack(x, site=SITE))
        del x
    assert [round(float(saved.expand().mean())) for saved in packed] == list(range(50))


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(8, 16, 8, 8).to(memory_format=torch.channels_last),
        torch.randn(64, 32).t(),
        torch.randn(64, 64)[:, ::2],
        torch.randn(64, 1).expand(64, 64),
        torch.randn(4, 8, 16, 16)[1:3, :, 2:9],
        torch.randn(2000).flip(0),
    ],
    ids=["channels_last", "transposed", "strided", "expanded", "sliced", "flat"],
)
def test_strides_do_not_matter(x):
    saved, expanded = packed_and_expanded(x)
    assert expanded.shape == x.shape
    assert torch.allclose(expanded, x, atol=0.06)
    if saved.stride is not None:
        assert expanded.stride() == x.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_floating_point_values_keep_their_dtype(dtype):
    x = torch.randn(64, 64).to(dtype)
    saved, expanded = packed_and_expanded(x)
    assert isinstance(saved.form, Codes)
    assert expanded.dtype == dtype
    assert torch.allclose(expanded.float(), x.float(), atol=0.06)


def test_booleans_take_one_bit():
    x = torch.rand(64, 100) < 0.3
    saved, expanded = packed_and_expanded(x)
    assert isinstance(saved.form, Mask)
    assert saved.form.num_bytes == 800
    assert torch.equal(expanded, x)


@pytest.mark.parametrize(
    ("low", "high", "num_bytes"), [(0, 255, 1), (-128, 127, 1), (-1, 255, 2), (0, 40_000, 4), (0, 2**31, None)]
)
def test_integers_are_narrowed_without_loss(low, high, num_bytes):
    x = torch.randint(low, high + 1, (2000,))
    x[0], x[1] = low, high
    saved, expanded = packed_and_expanded(x)
    assert isinstance(saved.form, UncompressedTensor if num_bytes is None else NarrowIntegers)
    assert saved.form.num_bytes == 2000 * (num_bytes or 8)
    assert torch.equal(expanded, x)
    assert expanded.dtype == torch.int64


@pytest.mark.parametrize("x", [torch.randn(100), torch.randn(2000, dtype=torch.complex64), torch.tensor(3.0)])
def test_small_tensors_and_rare_dtypes_are_kept(x):
    saved, expanded = packed_and_expanded(x)
    assert isinstance(saved.form, UncompressedTensor)
    assert torch.equal(expanded, x)


def test_parameters_buffers_and_views_of_them_are_neither_compressed_nor_counted():
    model = nn.Linear(64, 64)
    model.register_buffer("table", torch.randn(64, 64))
    store = saves(model)
    for x in (model.weight, model.weight.t(), model.weight.detach(), model.table, model.table[:32]):
        assert torch.equal(store.pack(x, site=SITE).expand(), x)
    assert store.tallies == {}


@pytest.mark.parametrize(
    "made",
    [
        lambda w: w.bfloat16(),
        lambda w: w.bfloat16().t(),
        lambda w: w.tanh().reshape(-1),
        lambda w: w / w.norm(),
        lambda w: w.detach().bfloat16(),
    ],
    ids=["cast", "cast and transposed", "through a function", "normalised", "frozen and cast"],
)
def test_what_is_made_of_parameters_alone_is_a_weight(made):
    model = nn.Linear(32, 64)
    store = saves(model)
    assert isinstance(store.pack(made(model.weight), site=SITE).form, UncompressedTensor)
    assert store.tallies == {}


@pytest.mark.parametrize(
    "made",
    [
        lambda layer: torch.randn(64, 64),
        lambda layer: layer(torch.randn(64, 64)),
        lambda layer: F.relu(layer(torch.randn(64, 64, requires_grad=True))),
    ],
    ids=["a batch", "the first layer's output", "a later output"],
)
def test_an_activation_as_large_as_a_weight_is_no_weight(made):
    layer = nn.Linear(64, 64)
    assert isinstance(saves(layer).pack(made(layer), site=SITE).form, Codes)


def test_groups_are_small_where_channels_are():
    assert group_size(torch.empty(2, 8, 16, 16)) == 256
    assert group_size(torch.empty(2, 8, 8, 8)) == 64
    assert group_size(torch.empty(2, 512, 16, 16).to(memory_format=torch.channels_last)) == 64
    assert group_size(torch.empty(32, 512)) == 256
    assert group_size(torch.empty(32, 128)) == 64


def test_the_group_can_be_said():
    form = saves(group=1024, bits=2).pack(torch.randn(64, 64), site=SITE).form
    assert form.num_bytes == 4 * (1024 // 4 + 4)


def test_infinities_survive():
    x = torch.randn(64, 64)
    x[5, 7] = -torch.inf
    _, expanded = packed_and_expanded(x, bits=2)
    assert expanded[5, 7] == -torch.inf
    assert expanded.isfinite().sum() == 64 * 64 - 1


def test_what_is_stored_lives_only_as_long_as_someone_holds_it():
    store, x = saves(), torch.randn(64, 64)
    first = store.pack(x, site=SITE)
    del first
    assert store.pack(x, site=SITE).form.num_bytes > 0
    assert store.tallies[SITE].num_tensors == 2
