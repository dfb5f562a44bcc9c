import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from roundoff.errors import FormatError, KernelError
from roundoff.formats import known_formats, round_to
from roundoff.kernels.rounding_rules import ROUNDINGS

EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("name", "dtype"), [("fp64", torch.float32), ("fp32", torch.float32), ("tf32", torch.float16)])
def test_a_format_wider_than_the_dtype_changes_nothing(name, dtype, same, any_bits):
    x = any_bits(dtype, 10_000, seed=13)
    result = round_to(x, name)
    assert same(result, x)
    assert result.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", [fmt.name for fmt in known_formats()])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_nan_stays_nan_and_dtype_and_shape_stay(name, dtype, rounding, either_kernel):
    x = torch.tensor([[math.nan, 1.0, -math.nan]], dtype=dtype)
    result = round_to(x, name, rounding=rounding)
    assert (result.dtype, result.shape) == (dtype, x.shape)
    assert result.isnan().tolist() == [[True, False, True]]


def test_a_zero_and_what_underflows_keep_their_sign_where_the_format_has_one(either_kernel):
    x = torch.tensor([0.0, -0.0, 1e-30, -1e-30])
    for name, keeps_sign in [("e4m3", True), ("fp16", True), ("e4m3fnuz", False), ("q1.7", False), ("mxfp4", True)]:
        last_block = torch.cat([torch.ones(1), x])  # the one gives an MX block its scale
        result = round_to(last_block, name)[1:]
        assert result.signbit().tolist() == [False, keeps_sign, False, keeps_sign], name
        assert (result == 0).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["e4m3", "bf16", "fp16", "e9m3", "q1.7", "mxfp8"])
def test_flushing_subnormals_changes_nothing(rounding, name, either_kernel, same, any_bits):
    small = torch.arange(0, 1 << 23, 999, dtype=torch.int32).view(torch.float32)
    x = torch.cat([small, -small, any_bits(torch.float32, 5000, seed=14)])
    torch.manual_seed(15)
    expected = round_to(x, name, rounding=rounding)
    assert torch.set_flush_denormal(True)
    try:
        torch.manual_seed(15)
        result = round_to(x, name, rounding=rounding)
    finally:
        torch.set_flush_denormal(False)
    assert same(result, expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["e4m3", "q1.7", "mxfp8"])
def test_strides_do_not_matter(rounding, name, either_kernel):
    base = torch.randn(6, 5, 8, 40)
    views: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: x.flip(0).flip(0),
        lambda x: torch.cat([x, x])[:6],
    ]
    torch.manual_seed(16)
    expected = round_to(base, name, rounding=rounding)
    for view in views:
        torch.manual_seed(16)
        assert torch.equal(round_to(view(base), name, rounding=rounding), expected)
        torch.manual_seed(16)
        out = view(torch.empty_like(base))
        assert round_to(base, name, rounding=rounding, out=out) is out
        assert torch.equal(out, expected)


def test_keeps_the_memory_layout_of_a_dense_tensor():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert round_to(x, "e4m3").is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", [fmt.name for fmt in known_formats()])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1, 7)])
def test_any_shape_will_do(name, shape, either_kernel):
    x = torch.full(shape, 0.75)
    for rounding in ROUNDINGS:
        result = round_to(x, name, rounding=rounding)
        assert result.shape == x.shape
        assert (result.double() - 0.75).abs().lt(0.3).all()


@pytest.mark.parametrize("name", ["e4m3", "q1.7", "mxfp8", "fp64"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_rounds_in_place(name, dtype, either_kernel):
    x = torch.randn(1000).to(dtype)
    expected = round_to(x, name)
    assert round_to(x, name, out=x) is x
    assert torch.equal(x, expected)


def test_rounds_a_tensor_into_a_place_that_overlaps_it():
    memory = torch.randn(1001)
    expected = round_to(memory[:-1], "e4m3")
    round_to(memory[:-1], "e4m3", out=memory[1:])
    assert torch.equal(memory[1:], expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_result_larger_than_the_caches_is_the_same(rounding):
    x = torch.randn((1 << 23) + 77)
    out = torch.empty(x.numel() + 3)[3:]  # not on a cache line of its own
    torch.manual_seed(17)
    round_to(x, "e4m3", rounding=rounding, out=out)
    in_place = x.clone()  # that way is never streamed past the caches
    torch.manual_seed(17)
    round_to(in_place, "e4m3", rounding=rounding, out=in_place)
    assert torch.equal(out, in_place)


def test_no_gradient_flows_and_the_parameter_is_left_alone():
    x = torch.nn.Parameter(torch.tensor([0.3]))
    result = round_to(x, "e4m3")
    assert not result.requires_grad
    assert x.item() == torch.tensor(0.3).item()


def test_autograd_learns_of_a_tensor_that_was_rounded_in_place(either_kernel):
    weight = torch.ones(3, requires_grad=True)
    x = torch.tensor([0.3, 0.4, 0.5])
    loss = (weight * x).sum()
    round_to(x, "e4m3", out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_rounds_a_parameter_in_place_under_no_grad_only():
    weight = torch.nn.Parameter(torch.tensor([0.3]))
    with pytest.raises(KernelError, match="requires grad"):
        round_to(weight, "e4m3", out=weight)
    with torch.no_grad():
        round_to(weight, "e4m3", out=weight)
    assert weight.item() == 0.3125


def test_works_in_inference_mode():
    with torch.inference_mode():
        x = torch.tensor([0.3])
        round_to(x, "e4m3", out=x)
        assert x.item() == 0.3125


def test_torch_compile_traces_the_torch_version():
    explained = torch._dynamo.explain(lambda x: round_to(x, "e4m3") + 1)(torch.randn(8))
    assert explained.graph_break_count == 0


def test_the_seed_of_torch_reproduces_stochastic_rounding_on_either_kernel(monkeypatch):
    x = torch.randn(1000)
    torch.manual_seed(18)
    first, second = round_to(x, "e4m3", rounding="stochastic"), round_to(x, "e4m3", rounding="stochastic")
    assert not torch.equal(first, second)
    monkeypatch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
    torch.manual_seed(18)
    assert torch.equal(round_to(x, "e4m3", rounding="stochastic"), first)
    assert torch.equal(round_to(x, "e4m3", rounding="stochastic"), second)


def test_a_generator_of_its_own_leaves_torchs_alone():
    x = torch.randn(100)
    state = torch.get_rng_state()
    results = [round_to(x, "e4m3", rounding="stochastic", generator=torch.Generator().manual_seed(19)) for _ in "ab"]
    assert torch.equal(*results)
    assert torch.equal(torch.get_rng_state(), state)


def test_streams_differ_and_repeat():
    x = torch.randn(1000)

    def rounded(stream: int) -> Tensor:
        return round_to(x, "e4m3", rounding="stochastic", generator=torch.Generator().manual_seed(20), stream=stream)

    assert all(torch.equal(rounded(stream), rounded(stream)) for stream in (0, 1, -1))
    for a, b in itertools.combinations((0, 1, 2, -1), 2):
        agreement = (rounded(a) == rounded(b)).double().mean()
        assert agreement < 0.8


def test_other_roundings_draw_nothing():
    state = torch.get_rng_state()
    for rounding in ("nearest", "toward_zero", "up", "down"):
        round_to(torch.randn(3, generator=torch.Generator()), "e4m3", rounding=rounding)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_unknown_rounding_is_an_error_that_lists_the_known_ones():
    with pytest.raises(FormatError) as caught:
        round_to(torch.ones(1), "e4m3", rounding="floor")
    assert str(caught.value) == (
        "Unknown rounding 'floor'.\n"
        "  why: known are nearest, stochastic, toward_zero, up, down.\n"
        "  fix: use one of them."
    )


def test_an_unknown_overflow_rule_is_an_error():
    with pytest.raises(FormatError, match="Unknown overflow rule 'wrap'"):
        round_to(torch.ones(1), "e4m3", overflow="wrap")


@pytest.mark.parametrize("name", ["q1.7", "mxfp8"])
def test_formats_that_only_saturate_say_so(name):
    with pytest.raises(FormatError, match="cannot overflow to 'infinity'"):
        round_to(torch.ones(1), name, overflow="infinity")


@pytest.mark.parametrize(
    "x", [torch.ones(1, dtype=torch.int64), torch.ones(1, dtype=torch.complex64), torch.eye(2).to_sparse()]
)
def test_a_tensor_that_cannot_be_rounded_is_an_error(x):
    with pytest.raises(KernelError, match="cannot be rounded"):
        round_to(x, "e4m3")


@pytest.mark.parametrize("out", [torch.empty(3), torch.empty(2, dtype=torch.float64), torch.empty(2, device="meta")])
def test_an_out_that_does_not_fit_is_an_error(out):
    with pytest.raises(KernelError, match="`out` is"):
        round_to(torch.ones(2), "e4m3", out=out)
