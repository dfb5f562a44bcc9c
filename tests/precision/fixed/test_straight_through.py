import pytest
import torch
from torch import nn

from roundoff.precision.fixed import FixedPointSettings, TensorSetting, convert_to_fixed_point

pytestmark = pytest.mark.usefixtures("either_kernel")

NONE = TensorSetting(method="none")


class Same(nn.Module):
    def forward(self, x):
        return x * 1.0


def converted(**settings):
    model = Same()
    return model, convert_to_fixed_point(model, FixedPointSettings(**settings))


def test_the_gradient_is_zero_only_beyond_the_scale_and_half_a_step():
    fixed = TensorSetting(bits=2, method="fixed", scale=0.5, compat="nics")  # step 0.25
    model, _ = converted(activation=fixed, error=NONE)
    x = torch.tensor([0.3, 0.5, 0.62, 0.63, -0.62, -0.63, -9.0, 0.0], requires_grad=True)
    out = model(x)
    assert out.tolist() == [0.25, 0.5, 0.5, 0.5, -0.5, -0.5, -0.5, 0.0]
    out.backward(torch.arange(1.0, 9.0))
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 0.0, 5.0, 0.0, 0.0, 8.0]


def test_twos_complement_passes_gradients_up_to_the_same_edge():
    model, _ = converted(activation=TensorSetting(bits=2, method="fixed", scale=0.5), error=NONE)
    x = torch.tensor([0.5, 0.62, 0.63], requires_grad=True)
    out = model(x)
    assert out.tolist() == [0.25] * 3
    out.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0]


def test_errors_are_quantized_with_a_setting_and_scale_of_their_own():
    model, handle = converted(activation=NONE, error=TensorSetting(bits=3, compat="nics"))
    x = torch.randn(100, requires_grad=True)
    out = model(x)
    assert torch.equal(out, x)
    out.backward(torch.linspace(-3, 3, 100))
    assert x.grad.unique().tolist() == [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    assert {row.name: row.scales for row in handle.rows()} == {"<model>.activation": (), "<model>.error": (4.0,)}


def test_both_together_mask_the_quantized_error():
    fixed = TensorSetting(bits=2, method="fixed", scale=0.5)
    model, _ = converted(activation=fixed, error=TensorSetting(bits=2, compat="nics"))
    x = torch.tensor([0.3, 9.0], requires_grad=True)
    model(x).backward(torch.tensor([0.26, 0.5]))
    assert x.grad.tolist() == [0.25, 0.0]


def test_the_gradient_that_came_in_is_not_changed():
    fixed = TensorSetting(bits=2, method="fixed", scale=0.5)
    model, _ = converted(activation=fixed, error=NONE)
    x, gradient = torch.tensor([9.0, 0.1], requires_grad=True), torch.ones(2)
    model(x).backward(gradient)
    assert gradient.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [0.0, 1.0]


def test_second_derivatives_are_refused_not_wrong():
    model, _ = converted()
    x = torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_each_sample_has_its_own_scale_and_the_largest_is_kept():
    model, handle = converted(activation=TensorSetting(bits=3, granularity="batch", compat="nics"))
    x = torch.tensor([0.1, 1.0, 10.0])[:, None] * torch.linspace(-1, 1, 33)
    out = model(x)
    assert [row.unique().numel() for row in out] == [7, 9, 5]
    assert handle.rows()[0].scales == (16.0,)
    assert model.eval()(x)[0].unique().tolist() == [0.0]


def test_each_channel_has_its_own_scale():
    model = nn.Conv2d(1, 3, 1)
    handle = convert_to_fixed_point(
        model, FixedPointSettings(weight=NONE, bias=NONE, activation=TensorSetting(granularity="channel"))
    )
    with torch.no_grad():
        model.weight.copy_(torch.tensor([0.1, 1.0, 10.0]).view(3, 1, 1, 1))
        model.bias.zero_()
    for x in (torch.ones(2, 1, 5, 5), torch.ones(1, 5, 5)):
        model(x)
        assert next(row for row in handle.rows() if row.kind == "activation").scales == (0.125, 1.0, 16.0)


def test_channels_of_a_weight_are_its_outputs():
    model = nn.Linear(20, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([0.1, 1.0, 10.0])[:, None].expand(3, 20))
    settings = FixedPointSettings(
        weight=TensorSetting(granularity="channel"), gradient=TensorSetting(granularity="channel"), activation=NONE
    )
    handle = convert_to_fixed_point(model, settings)
    model(torch.ones(2, 20)).backward(torch.tensor([[1.0, 10.0, 100.0]]).expand(2, 3))
    scales = {row.name: row.scales for row in handle.rows()}
    assert scales["<model>.weight"] == (0.125, 1.0, 16.0)
    assert scales["<model>.weight_gradient"] == (2.0, 32.0, 256.0)


def test_stochastic_rounding_follows_the_seed_and_is_nearest_in_eval():
    model, _ = converted(activation=TensorSetting(bits=3, rounding="stochastic"))
    x = torch.linspace(-1, 1, 100)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(model(x))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    model.eval()
    assert torch.equal(model(x), model(x))
    assert torch.equal(model(x), (x / 0.25).round().clamp(-4, 3) * 0.25)
