import math

import pytest
import torch

from roundoff.errors import KernelError
from roundoff.kernels.rounding_rules import FixedRule
from roundoff.kernels.scaled_fixed_point import follow_data_, is_beyond_torch, quantize_fixed, zero_beyond_

EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def in_torch(monkeypatch, *args, **kwargs):
    with monkeypatch.context() as patch:
        patch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
        return quantize_fixed(*args, **kwargs)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("range_", ["max", "3sigma", "sweep", "percentile"])
@pytest.mark.parametrize("float_scale", [False, True])
def test_both_versions_agree(monkeypatch, dtype, range_, float_scale, rounding):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 7, 11).to(dtype)
    x[0, 0, 0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    rule = FixedRule(num_bits=5, range=range_, float_scale=float_scale)
    for axis in (None, 0, 1, 3):
        scales = [torch.zeros([] if axis is None else [x.shape[axis]]) for _ in range(2)]
        options = {"follow": "data", "axis": axis, "rounding": rounding, "key": 123, "wants_beyond": True}
        compiled = quantize_fixed(x, scales[0], rule, **options)
        in_torch_only = in_torch(monkeypatch, x, scales[1], rule, **options)
        torch.testing.assert_close(*scales, rtol=1e-6, atol=0)
        if torch.equal(*scales):
            torch.testing.assert_close(compiled.values, in_torch_only.values, rtol=0, atol=0, equal_nan=True)
        assert int(compiled.num_nonfinite) == int(in_torch_only.num_nonfinite) == 3


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("axis", [None, 1])
def test_marks_what_is_beyond_the_scale_by_more_than_half_a_step(either_kernel, dtype, axis):
    x = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[0, 0, 0] = math.inf
    scale = torch.full([] if axis is None else [3], 0.5)
    rule = FixedRule(num_bits=3)
    found = quantize_fixed(x, scale, rule, follow="never", axis=axis, wants_beyond=True)
    marked = zero_beyond_(torch.ones_like(x), found.beyond) == 0
    assert torch.equal(marked, (x.abs() > 0.5 + 0.0625) & x.isfinite())
    assert torch.equal(marked, is_beyond_torch(x, scale, rule, axis=axis))
    assert found.values.isinf().sum() == 1


def test_the_edge_of_the_scale_is_within(either_kernel):
    edge = 0.5 + 0.125 / 2
    x = torch.tensor([edge, -edge, math.nextafter(edge, 1) + 1e-6])
    found = quantize_fixed(x, torch.tensor(0.5), FixedRule(num_bits=3), follow="never", wants_beyond=True)
    assert zero_beyond_(torch.ones(3), found.beyond).tolist() == [1.0, 1.0, 0.0]


def test_says_nothing_is_beyond_where_nothing_is(either_kernel):
    x = torch.randn(1000)
    assert quantize_fixed(x, torch.zeros(()), FixedRule(num_bits=4), follow="data", wants_beyond=True).beyond is None


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_strides_do_not_matter(either_kernel, rounding):
    x = torch.randn(2, 3, 4, 5)
    rule = FixedRule(num_bits=4, range="3sigma")
    scale = torch.zeros(())
    options = {"follow": "data", "rounding": rounding, "key": 7, "wants_beyond": True}
    plain = quantize_fixed(x, scale, rule, **options)
    for view in (x.to(memory_format=torch.channels_last), x.transpose(1, 3).contiguous().transpose(1, 3)):
        found = quantize_fixed(view, scale, rule, **options)
        assert torch.equal(found.values, plain.values)
        if plain.beyond is not None:
            ones = torch.ones_like(found.values)
            assert torch.equal(zero_beyond_(ones, found.beyond), zero_beyond_(torch.ones(x.shape), plain.beyond))
    expanded = -torch.ones(()).expand(4, 5)
    assert torch.equal(quantize_fixed(expanded, scale, rule, **options).values, expanded)


def test_follows_as_requested(either_kernel):
    rule, scale = FixedRule(num_bits=4), torch.zeros(())
    for x, follow, expected in [(3.0, "data", 4.0), (1.0, "at_least", 4.0), (9.0, "at_least", 16.0),
                                (1.0, "never", 16.0), (1.0, "data", 1.0)]:  # fmt: skip
        quantize_fixed(torch.tensor([x]), scale, rule, follow=follow)
        assert scale.item() == expected


def test_a_tensor_without_finite_elements_leaves_the_scale(either_kernel):
    rule, scale = FixedRule(num_bits=4), torch.tensor(8.0)
    x = torch.tensor([math.nan, math.inf])
    found = quantize_fixed(x, scale, rule, follow="data")
    assert scale.item() == 8.0
    assert found.values.isnan().tolist() == [True, False]
    assert found.values[1] == math.inf


def test_powers_of_two_are_exact_over_the_whole_range(either_kernel):
    rule = FixedRule(num_bits=8)
    for exponent in range(-16, 127):
        scale = torch.zeros(())
        for factor, expected in ((1.0, exponent), (1 + 2**-20, exponent + 1)):
            quantize_fixed(torch.tensor([factor * 2.0**exponent]), scale, rule, follow="data")
            assert scale.item() == 2.0**expected
    quantize_fixed(torch.tensor([torch.finfo(torch.float32).max]), scale, rule, follow="data")
    assert scale.item() == 2.0**127


def test_empty_tensors_pass(either_kernel):
    scale = torch.tensor(2.0)
    assert quantize_fixed(torch.zeros(0, 3), scale, FixedRule(num_bits=4), follow="data").values.shape == (0, 3)
    assert scale.item() == 2.0


def test_integers_are_an_error(either_kernel):
    with pytest.raises(KernelError):
        quantize_fixed(torch.ones(3, dtype=torch.int32), torch.zeros(()), FixedRule(num_bits=4), follow="data")


def test_large_results_are_right_too(either_kernel):
    x = torch.full((9_000_000,), 0.3)
    found = quantize_fixed(x, torch.tensor(1.0), FixedRule(num_bits=3), follow="never")
    assert torch.equal(found.values, torch.full_like(x, 0.25))


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("range_", ["max", "3sigma", "sweep", "percentile"])
def test_a_scale_can_follow_data_that_is_not_rounded(either_kernel, range_, axis):
    x = torch.randn(4, 64)
    before = x.clone()
    rule = FixedRule(num_bits=5, range=range_)
    measured, expected = (torch.zeros([] if axis is None else [4]) for _ in range(2))
    follow_data_(measured, x, rule, axis=axis)
    quantize_fixed(x, expected, rule, follow="data", axis=axis)
    assert torch.equal(measured, expected)
    assert torch.equal(x, before)


def test_no_data_leaves_the_scale(either_kernel):
    scale = torch.tensor(2.0)
    follow_data_(scale, torch.zeros(0), FixedRule(num_bits=4))
    assert scale.item() == 2.0


def test_values_beyond_the_scale_are_zeroed_in_every_dtype_and_layout():
    x = torch.tensor([[0.1, 3.0, -0.2], [-5.0, 0.5, 0.3]])
    beyond = quantize_fixed(x, torch.tensor(1.0), FixedRule(num_bits=4), follow="never", wants_beyond=True).beyond
    expected = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    for ones in (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64), torch.ones(3, 2).t()):
        assert torch.equal(zero_beyond_(ones, beyond).float(), expected)


def test_a_negated_view_is_quantized_as_its_values(either_kernel):
    x = torch.complex(torch.zeros(8), torch.linspace(-1, 1, 8))
    negated = x.conj().imag
    assert negated.is_neg()
    scales = torch.zeros(()), torch.zeros(())
    rule = FixedRule(num_bits=4)
    found = quantize_fixed(negated, scales[0], rule, follow="data")
    plain = quantize_fixed(negated.resolve_neg(), scales[1], rule, follow="data")
    assert torch.equal(found.values, plain.values)
    assert torch.equal(*scales)
