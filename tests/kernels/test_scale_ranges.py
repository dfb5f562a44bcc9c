"""What each range, rounding and granularity means, seen from one quantized weight."""

import pytest
import torch

from roundoff.kernels.rounding_rules import FixedRule
from roundoff.kernels.scaled_fixed_point import quantize_fixed

pytestmark = pytest.mark.usefixtures("either_kernel")


def scale_of(x, **rule):
    scale = torch.zeros(())
    quantize_fixed(x, scale, FixedRule(**{"num_bits": 4, **rule}), follow="data")
    return scale.item()


def test_three_sigma_is_the_formula():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 0.3 + 0.1
    bound = 3 * x.double().std() + x.double().mean().abs()
    assert scale_of(x, range="3sigma", float_scale=True) == pytest.approx(bound.item(), rel=1e-6)
    assert scale_of(x, range="3sigma") == 2.0 ** bound.log2().ceil().item()


def test_three_sigma_of_one_element_is_its_magnitude():
    assert scale_of(torch.tensor([-3.0]), range="3sigma", float_scale=True) == 3.0


def test_sweep_lets_outliers_saturate_where_max_loses_the_rest():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 0.1
    x[7] = 1.5
    changes = {}
    for chosen in ("max", "sweep"):
        scale = torch.zeros(())
        found = quantize_fixed(x, scale, FixedRule(num_bits=3, range=chosen), follow="data")
        changes[chosen] = ((found.values - x).abs().sum().item(), scale.item())
    assert changes["max"][1] == 2.0
    assert changes["sweep"][1] == 0.5
    assert changes["sweep"][0] < 0.5 * changes["max"][0]


def test_sweep_is_max_where_nothing_can_be_left_out():
    assert scale_of(torch.tensor([1.0, -1.0, 1.0, -0.9]), range="sweep") == scale_of(torch.tensor([1.0]))


def test_sweep_chooses_the_least_change_among_the_three():
    torch.manual_seed(3)
    for spread in (0.1, 0.5, 1.0, 2.0):
        x = torch.randn(500).exp() * spread
        rule = FixedRule(num_bits=4, range="sweep")
        largest = 2.0 ** x.abs().max().log2().ceil().item()
        changes = {}
        for scale in (largest, largest / 2, largest / 4):
            values = quantize_fixed(x, torch.tensor(scale), rule, follow="never").values
            changes[(values - x).abs().double().sum().item()] = scale
        assert scale_of(x, range="sweep") == changes[min(changes)]


def test_percentile_leaves_out_the_largest():
    x = torch.arange(1.0, 1001.0)
    assert scale_of(x, range="percentile", percentile=90.0, float_scale=True) == 900.0
    assert scale_of(x, range="percentile", percentile=50.0) == 512.0
    assert scale_of(x, range="percentile", percentile=100.0, float_scale=True) == 1000.0


def test_each_channel_has_its_own_scale():
    x = torch.tensor([0.3, 3.0, 30.0])[:, None] * torch.ones(3, 64)
    scale = torch.zeros(3)
    found = quantize_fixed(x, scale, FixedRule(num_bits=8, nics=True), follow="data", axis=0)
    assert scale.tolist() == [0.5, 4.0, 32.0]
    assert ((found.values - x).abs() <= scale[:, None] / 256).all()


def test_stochastic_rounding_is_unbiased_and_reproducible():
    x = torch.full((200_000,), 0.3)
    rule = FixedRule(num_bits=3, nics=True)

    def rounded(key):
        return quantize_fixed(x, torch.tensor(1.0), rule, follow="never", rounding="stochastic", key=key).values

    assert set(rounded(1).tolist()) == {0.25, 0.5}
    assert rounded(1).mean().item() == pytest.approx(0.3, abs=1e-3)
    assert torch.equal(rounded(1), rounded(1))
    assert not torch.equal(rounded(1), rounded(2))
