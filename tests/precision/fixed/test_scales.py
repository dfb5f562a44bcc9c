"""When scales follow the data, when they stay, and what can not harm them."""

import math

import pytest
import torch
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.fixed import FixedPointSettings, TensorSetting, convert_to_fixed_point

pytestmark = pytest.mark.usefixtures("either_kernel")


class Same(nn.Module):
    def forward(self, x):
        return x * 1.0


def scales_of(handle):
    return {row.name: row.scales for row in handle.rows()}


def test_auto_follows_the_data_in_training_and_stays_in_eval():
    model = nn.Sequential(nn.ReLU())
    handle = convert_to_fixed_point(model)
    for x, training, expected in [(3.0, True, 4.0), (0.3, True, 0.5), (9.0, False, 0.5), (9.0, True, 16.0)]:
        model.train(training)(torch.tensor([x]))
        assert scales_of(handle)["0.activation"] == (expected,)


def test_what_was_never_seen_is_measured_once_in_eval():
    model = nn.Linear(4, 4).eval()
    handle = convert_to_fixed_point(model)
    model(torch.ones(1, 4))
    first = scales_of(handle)
    model(1000 * torch.ones(1, 4))
    assert scales_of(handle) == first
    assert first["<model>.activation"]


def test_a_weight_that_grows_takes_its_scale_along_in_training():
    model = nn.Linear(2, 1, bias=False)
    handle = convert_to_fixed_point(model)
    with torch.no_grad():
        model.weight.fill_(5.0)
    model.eval()(torch.ones(1, 2))
    assert scales_of(handle)["<model>.weight"] != (8.0,)
    model.train()(torch.ones(1, 2))
    assert scales_of(handle)["<model>.weight"] == (8.0,)


def test_a_module_called_twice_keeps_the_larger_scale_of_a_pass():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(x), self.relu(x / 100)

    model = Twice()
    handle = convert_to_fixed_point(model)
    model(torch.tensor([3.0]))
    assert scales_of(handle)["relu.activation"] == (4.0,)
    model(torch.tensor([0.3]))
    assert scales_of(handle)["relu.activation"] == (0.5,)  # a new pass begins anew


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_value_passes_is_counted_and_harms_no_scale(bad):
    model = nn.Sequential(Same())
    handle = convert_to_fixed_point(model)
    x = torch.tensor([1.0, bad, -3.0], requires_grad=True)
    out = model(x)
    torch.testing.assert_close(out.detach(), torch.tensor([1.0, bad, -3.0]), equal_nan=True)
    assert scales_of(handle)["0.activation"] == (4.0,)
    out.backward(torch.tensor([1.0, 2.0, bad]))
    assert x.grad[:2].tolist() == [1.0, 1.984375]
    assert scales_of(handle)["0.error"] == (2.0,)
    assert handle.num_nonfinite() == {"0.activation": 1, "0.error": 1}
    model(torch.full((2,), bad))
    assert scales_of(handle)["0.activation"] == (4.0,)
    assert handle.num_nonfinite()["0.activation"] == 3


def test_fixed_without_a_scale_says_so_when_it_is_used():
    model = nn.Sequential(nn.Linear(2, 2))
    convert_to_fixed_point(model, FixedPointSettings.uniform(method="fixed"))
    with pytest.raises(RecipeError, match=r"'0\.activation' has the method 'fixed' but no scale"):
        model(torch.ones(1, 2))


def test_a_given_scale_is_used_and_kept():
    fixed = TensorSetting(bits=4, method="fixed", scale=0.5)
    model = nn.Sequential(nn.ReLU())
    handle = convert_to_fixed_point(model, FixedPointSettings(activation=fixed))
    assert model(torch.tensor([9.0, 0.1])).tolist() == [0.4375, 0.125]
    assert scales_of(handle)["0.activation"] == (0.5,)


def test_channel_scales_follow_and_freeze_like_others():
    model = nn.Sequential(nn.ReLU())
    handle = convert_to_fixed_point(model, FixedPointSettings(activation=TensorSetting(granularity="channel")))
    x = torch.tensor([0.1, 1.0, 10.0]).expand(20, 3)
    model(x)
    assert scales_of(handle)["0.activation"] == (0.125, 1.0, 16.0)
    model.eval()(100 * x)
    assert scales_of(handle)["0.activation"] == (0.125, 1.0, 16.0)


def test_one_activation_module_at_two_places_of_a_sequence_keeps_the_larger_scale():
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(1, 1), relu)
    with torch.no_grad():
        model[1].weight.fill_(0.01)
        model[1].bias.fill_(0.0)
    handle = convert_to_fixed_point(model)
    model(torch.tensor([[3.0]]))
    assert scales_of(handle)["0.activation"] == (4.0,)


def test_a_given_scale_serves_every_channel():
    fixed = TensorSetting(bits=4, method="fixed", scale=0.5, granularity="channel")
    for model, size in ((nn.ReLU(), 3), (nn.Linear(3, 5), 5)):
        handle = convert_to_fixed_point(model, FixedPointSettings(activation=fixed))
        model(torch.ones(2, 3))
        assert scales_of(handle)["<model>.activation"] == (0.5,) * size


def test_inference_mode_can_come_first():
    model = nn.Sequential(nn.LSTM(3, 4))
    convert_to_fixed_point(model)
    with torch.inference_mode():
        model.eval()(torch.randn(5, 2, 3))
    model.train()(torch.randn(5, 2, 3))[0].sum().backward()


@pytest.mark.parametrize("range_", ["max", "3sigma", "sweep", "percentile"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_no_number_is_fetched_from_the_device(range_, granularity):
    settings = FixedPointSettings.uniform(range=range_, granularity=granularity)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    convert_to_fixed_point(model, settings, norms="quantized")
    model.to("meta")  # where fetching a number is an error
    for training in (True, False):
        model.train(training)(torch.randn(2, 3, 8, 8, device="meta")).sum().backward()
