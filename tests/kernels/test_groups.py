import pytest
import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels import group_codes as groups
from roundoff.kernels.group_codes import (
    CODE_BITS,
    GroupCodes,
    compress_groups,
    compress_groups_torch,
    compress_groups_without_waiting,
    expand_groups,
    expand_groups_torch,
)
from roundoff.kernels.random_numbers import draw_key

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
KINDS = ["signed", "positive", "negative", "relu", "dropout", "zeros", "constant", "wild"]


def values(kind: str, *, size: int = 3000, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(7))
    if kind == "positive":
        x = x.abs()
    elif kind == "negative":
        x = -x.abs()
    elif kind == "relu":
        x = x.relu()
    elif kind == "dropout":
        x = x * (torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.5)
    elif kind == "zeros":
        x = x * 0
    elif kind == "constant":
        x = torch.full_like(x, 1.1)
    elif kind == "wild":
        x = x * (x * 3).exp2()
    return x.to(dtype)


def steps(compressed: GroupCodes) -> Tensor:
    """The step of the group of every value."""
    step = compressed.heads[:, 1].abs().double()
    return step.repeat_interleave(compressed.group)[: compressed.num_values]


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_moves_by_less_than_a_step(bits, kind, dtype):
    x = values(kind, dtype=dtype)
    compressed = compress_groups(x, bits=bits, group=64, key=3)
    error = (expand_groups(compressed).double() - x.double()).abs()
    rounded_to_dtype = x.double().abs() * 2 * torch.finfo(dtype).eps + torch.finfo(dtype).tiny
    assert (error <= steps(compressed) * 1.0001 + rounded_to_dtype).all()


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("group", [64, 192, 256, 1024])
def test_the_step_divides_the_range_of_a_group_by_its_codes(bits, group):
    x = values("signed", size=4 * group)
    step = compress_groups(x, bits=bits, group=group, key=0).heads[:, 1].float()
    rows = x.view(-1, group)
    ideal = (rows.amax(1) - rows.amin(1)) / ((1 << bits) - 1)
    assert (step >= ideal).all()
    assert (step <= ideal * 1.03).all()


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("kind", ["relu", "dropout", "zeros"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_stays_exactly_zero(bits, kind, dtype):
    x = values(kind, dtype=dtype)
    expanded = expand_groups(compress_groups(x, bits=bits, key=5))
    assert (expanded[x == 0] == 0).all()


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("kind", ["relu", "positive"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_values_stay_positive_where_none_is_negative(bits, kind, dtype):
    x = values(kind, dtype=dtype)
    assert torch.equal(expand_groups(compress_groups(x, bits=bits, key=5)) > 0, x > 0)


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("kind", ["signed", "relu", "dropout", "constant", "negative"])
def test_the_mean_over_many_keys_is_the_value(bits, kind):
    x = values(kind, size=512)
    num_keys = 2000
    compressed = compress_groups(x, bits=bits, group=256, key=0)
    total = sum(
        expand_groups(compress_groups(x, bits=bits, group=256, key=draw_key())).double() for _ in range(num_keys)
    )
    deviation = (total / num_keys - x.double()) / steps(compressed)
    assert deviation.abs().max() < 0.5 * 5 / num_keys**0.5
    assert deviation.mean().abs() < 0.5 * 5 / (num_keys * 512) ** 0.5


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("group", [64, 128, 256, 1024])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_compiled_and_torch_give_the_same_bits(bits, group, kind, dtype):
    x = values(kind, dtype=dtype)
    key = 0x123456789ABCDEF
    compressed = compress_groups(x, bits=bits, group=group, key=key)
    heads, codes = compress_groups_torch(x, bits=bits, group=group, key=key)
    assert torch.equal(compressed.heads.view(torch.int16), heads.view(torch.int16))
    assert torch.equal(compressed.codes, codes)
    flat = expand_groups_torch(heads, codes, bits=bits, group=group, num_values=x.numel())
    if compressed.plain_groups is None and dtype != torch.float16:
        assert torch.equal(expand_groups(compressed), flat.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_torch_version_serves_where_the_compiled_one_cannot(dtype, monkeypatch: pytest.MonkeyPatch):
    x = values("relu", dtype=dtype)
    x[70] = torch.inf
    expanded = expand_groups(compress_groups(x, bits=4, group=64, key=1))
    monkeypatch.setattr(groups, "compiled_for", lambda x: None)
    assert torch.equal(expand_groups(compress_groups(x, bits=4, group=64, key=1)), expanded)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_groups_with_values_that_are_not_finite_are_kept_as_they_are(dtype, bad):
    x = values("signed", size=1000, dtype=dtype)
    x[3], x[990] = bad, bad
    compressed = compress_groups(x, bits=2, group=64, key=0)
    expanded = expand_groups(compressed)
    assert compressed.plain_groups is not None
    assert compressed.plain_groups.tolist() == [0, 15]
    for kept in (slice(64), slice(960, 1000)):
        assert torch.equal(expanded[kept].nan_to_num(5, 6, 7), x[kept].nan_to_num(5, 6, 7))
    assert expanded[64:960].isfinite().all()


def test_a_range_beyond_what_a_step_can_be_is_kept_as_it_is():
    x = values("signed", size=256)
    x[0], x[1] = 3e38, -3e38
    assert torch.equal(expand_groups(compress_groups(x, bits=2, key=0)), x)


def test_fp16_values_near_the_largest_do_not_become_infinite():
    x = torch.linspace(-65504, 65504, 256).half()
    for key in range(20):
        assert expand_groups(compress_groups(x, bits=2, key=key)).isfinite().all()


def test_subnormal_values_count_as_zero():
    x = torch.full((64,), 1e-40)
    assert (expand_groups(compress_groups(x, bits=2, group=64, key=0)) == 0).all()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 255, 1000])
def test_any_number_of_values_comes_back(size):
    x = values("relu", size=size)
    compressed = compress_groups(x, bits=8, group=64, key=0)
    assert compressed.num_bytes == -(-size // 64) * (64 + 4)
    assert torch.allclose(expand_groups(compressed), x, atol=0.05)


def test_256_values_of_2_bits_take_68_bytes():
    assert compress_groups(torch.randn(256), bits=2, group=256, key=0).num_bytes == 68


def test_a_strided_tensor_is_read_in_row_major_order():
    x = values("signed", size=2048).view(32, 64)
    expected = expand_groups(compress_groups(x.t().contiguous(), bits=4, key=9))
    assert torch.equal(expand_groups(compress_groups(x.t(), bits=4, key=9)), expected)


def test_the_key_alone_decides_the_rounding():
    x = values("signed")
    one, again, other = (compress_groups(x, bits=2, key=key).codes for key in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("x", "options", "word"),
    [
        (torch.zeros(4, dtype=torch.int32), {"bits": 4}, "int32"),
        (torch.zeros(4), {"bits": 3}, "bits=3"),
        (torch.zeros(4), {"bits": 4, "group": 100}, "group=100"),
        (torch.zeros(4), {"bits": 4, "group": 2048}, "group=2048"),
    ],
)
def test_what_cannot_be_compressed_is_refused(x, options, word):
    with pytest.raises(KernelError, match=word):
        compress_groups(x, key=0, **options)


@pytest.mark.parametrize("bits", CODE_BITS)
def test_whole_groups_are_the_same_in_torch(bits):
    x = values("signed", size=512)
    compressed = compress_groups(x, bits=bits, group=256, key=5)
    heads, codes = compress_groups_torch(x, bits=bits, group=256, key=5)
    assert torch.equal(heads, compressed.heads)
    assert torch.equal(codes, compressed.codes)


# -- on an accelerator, where nobody waits to know which groups are finite ---------------------------------------------


def compress_there(x: torch.Tensor, *, bits: int, group: int = 64, key: int = 0) -> GroupCodes:
    heads, codes, kinds = compress_groups_without_waiting(x.float(), bits=bits, group=group, key=key)
    return GroupCodes(
        heads=heads, codes=codes, num_values=x.numel(), bits=bits, group=group, dtype=x.dtype, kinds=kinds
    )


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("kind", ["signed", "relu", "dropout", "constant", "negative", "zeros"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_groups_are_compressed_alike_without_waiting(bits, kind, dtype):
    x = values(kind, dtype=dtype)
    expected = compress_groups(x, bits=bits, group=64, key=7)
    found = compress_there(x, bits=bits, key=7)
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(expand_groups(found), expand_groups(expected))


@pytest.mark.parametrize("bits", CODE_BITS)
@pytest.mark.parametrize("kind", ["signed", "relu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_come_back_without_waiting(bits, kind, dtype, bad):
    x = values(kind, size=1000, dtype=dtype)
    x[:64:3], x[990] = bad, bad
    expanded = expand_groups(compress_there(x, bits=bits))
    assert torch.equal(expanded.isfinite(), x.isfinite())
    assert torch.equal(expanded[~x.isfinite()].nan_to_num(5, 6, 7), x[~x.isfinite()].nan_to_num(5, 6, 7))
    assert torch.equal(expanded[x == 0], x[x == 0])


def test_the_others_of_their_group_keep_their_mean():
    x = values("signed", size=64)
    x[:32:2] = -torch.inf
    fine = x.isfinite()
    drawn = [expand_groups(compress_there(x, bits=2, key=draw_key()))[fine].double() for _ in range(2000)]
    step = x[fine].max() - x[fine].min()
    assert ((torch.stack(drawn).mean(0) - x[fine]) / step).abs().max() < 0.5 * 5 / 2000**0.5


def test_several_kinds_in_one_group_become_nan_and_huge_values_are_limited():
    x = values("signed", size=192)
    x[0], x[1], x[64], x[65] = torch.inf, -torch.inf, 3e38, -3e38
    expanded = expand_groups(compress_there(x, bits=4))
    assert expanded[:2].isnan().all()
    assert expanded[2:].isfinite().all()
    assert expanded[64] > 2e37
    assert expanded[65] < -2e37


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_of_an_accelerator_is_read(dtype):
    x = torch.empty(1000, dtype=dtype, device="meta")  # where fetching a number is an error
    compressed = compress_groups(x, bits=2, group=256, key=0)
    assert compressed.num_bytes == 4 * (64 + 4 + 1)
    assert expand_groups(compressed).shape == x.shape
