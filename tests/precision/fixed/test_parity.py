"""The cases that users of nics_fix_pt know, on a module and its parameter as they would meet them."""

import pytest
import torch
from torch import Tensor, nn

from roundoff.precision.fixed import FixedPointModel, FixedPointSettings, TensorSetting, convert_to_fixed_point

pytestmark = pytest.mark.usefixtures("either_kernel")

NONE = TensorSetting(method="none")


class Holder(nn.Module):
    """Returns its parameter."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values))

    def forward(self) -> Tensor:
        return self.weight * 1.0


def quantized(values: list[float], **setting: object) -> tuple[Tensor, float, float]:
    """Return what a weight becomes, its scale and its step."""
    weight = TensorSetting(compat="nics", **setting)
    model = Holder(values)
    settings = FixedPointSettings(weight=weight, activation=NONE, gradient=NONE, error=NONE)
    handle = convert_to_fixed_point(model, settings)
    out = model().detach()
    scale = handle.rows()[0].scales[0]
    return out, scale, weight.step_of(scale)


def test_a_fixed_scale():
    out, scale, step = quantized([0.2513, -0.5, 0.0], bits=2, method="fixed", scale=0.5)
    assert (out.tolist(), scale, step) == ([0.25, -0.5, 0.0], 0.5, 0.25)


def test_a_maximum_that_is_a_power_of_two():
    out, scale, step = quantized([0.2513, -0.5, 0.0], bits=2, method="auto", range="max")
    assert (out.tolist(), scale, step) == ([0.25, -0.5, 0.0], 0.5, 0.25)


def test_a_maximum_that_is_rounded_up():
    out, scale, _ = quantized([0.2513, -0.52, 0.0], bits=2, method="auto", range="max")
    assert (out.tolist(), scale) == ([0.5, -0.5, 0.0], 1.0)


def test_three_sigma():
    out, scale, step = quantized([0.2513, -0.52, 0.0], bits=4, method="auto", range="3sigma")
    assert (out.tolist(), scale, step) == ([0.25, -0.5, 0.0], 2.0, 0.25)


def test_a_float_scale():
    out, _, step = quantized([0.2513, -0.52, 0.0], bits=4, method="auto", float_scale=True)
    torch.testing.assert_close(out, torch.tensor([0.26, -0.52, 0.0]), rtol=0, atol=1e-7)
    assert step == pytest.approx(0.065)


def test_a_gradient():
    model = Holder([1.0, 1.0])
    gradient = TensorSetting(bits=2, compat="nics")
    settings = FixedPointSettings(weight=NONE, activation=NONE, gradient=gradient, error=NONE)
    convert_to_fixed_point(model, settings)
    out = model()
    assert torch.equal(out, torch.ones(2))  # forward is the identity
    out.backward(torch.tensor([0.5, 0.26]))
    assert model.weight.grad.tolist() == [0.5, 0.25]


def test_two_to_the_bits_and_one_levels_in_compatible_mode_and_one_less_without():
    values = torch.linspace(-2, 2, 1001).tolist()
    assert len(quantized(values, bits=3)[0].unique()) == 9
    model = Holder(values)
    settings = FixedPointSettings(weight=TensorSetting(bits=3), activation=NONE)
    convert_to_fixed_point(model, settings)
    assert model().unique().tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5]


def test_no_range_is_smaller_than_eps():
    _, scale, _ = quantized([0.0, 0.0], bits=8)
    assert scale == 2.0**-16  # the power of two above 1e-5
    model = Holder([0.0])
    convert_to_fixed_point(model)
    assert FixedPointModel.of(model).rows()[0].scales == (2.0**-16,)
