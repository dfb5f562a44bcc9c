"""The handle: looking at a converted model, switching it live, saving and copying it."""

import copy
import pickle
from textwrap import dedent

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.fixed import FixedPointModel, FixedPointSettings, TensorSetting, convert_to_fixed_point


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10), nn.Dropout(0.2)
    )


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 1, 8, 8, generator=generator)
        y = torch.randint(0, 10, (8,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def methods_of(handle):
    return {row.name: row.setting.method for row in handle.rows()}


def test_describes_every_setting_and_scale_as_a_table():
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.3, -0.7]]))
        model[0].bias.fill_(0.0)
    settings = FixedPointSettings(
        weight=TensorSetting(bits=4, compat="nics"),
        activation=TensorSetting(range="percentile", rounding="stochastic", float_scale=True),
        gradient=TensorSetting(method="none"),
        error=TensorSetting(range="sweep", granularity="channel"),
    )
    handle = convert_to_fixed_point(model, settings)
    model.eval()(torch.ones(3, 2))
    expected = """\
        tensor             bits      method  range                   rounding    granularity  scale        step         used  non-finite
        0.weight           4 (nics)  auto    max                     nearest     tensor       1            0.125        yes   0
        0.weight_gradient  -         none    -                       -           -            -            -            -     0
        0.bias             16        auto    max                     nearest     tensor       1.52588e-05  4.65661e-10  yes   0
        0.bias_gradient    -         none    -                       -           -            -            -            -     0
        0.activation       8         auto    percentile 99.9, float  stochastic  tensor       0.5          0.00390625   yes   0
        0.error            8         auto    sweep                   nearest     channel      -            -            no    0
        1.activation       8         auto    percentile 99.9, float  stochastic  tensor       1e-05        7.8125e-08   yes   0
        1.error            8         auto    sweep                   nearest     channel      -            -            no    0"""  # noqa: E501
    assert handle.describe() == dedent(expected)


def test_methods_are_switched_on_the_live_model_for_all_by_type_and_by_name():
    model = small_net()
    handle = convert_to_fixed_point(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, range(2))
    num_all = len(handle.rows())
    assert handle.set_method("fixed") == num_all
    assert set(methods_of(handle).values()) == {"fixed"}
    frozen = [row.scales for row in handle.rows()]
    train(model, optimizer, range(2, 4))
    assert [row.scales for row in handle.rows()] == frozen

    assert handle.set_method("none", types="Conv2d") == handle.set_method("none", types=[nn.Conv2d])
    assert [name for name, method in methods_of(handle).items() if method == "none"] == [
        "0.weight", "0.weight_gradient", "0.bias", "0.bias_gradient", "0.activation", "0.error"]  # fmt: skip
    handle.set_method("auto", names="4", tensors=["weight", "bias"])
    assert [name for name, method in methods_of(handle).items() if method == "auto"] == ["4.weight", "4.bias"]
    handle.set_method("auto", names=["*"], tensors="error")
    assert methods_of(handle)["2.error"] == "auto"


def test_switched_off_it_is_the_float_model():
    model, plain = small_net().eval(), small_net().eval()
    handle = convert_to_fixed_point(model)
    x = torch.randn(2, 1, 8, 8)
    assert not torch.equal(model(x), plain(x))
    handle.set_method("none")
    assert torch.equal(model(x), plain(x))
    gradients = [torch.autograd.grad(net(x).square().sum(), net[0].weight)[0] for net in (model, plain)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("method = 'automatic' is invalid", {"method": "automatic"}),
        ("tensors = 'weights' is invalid", {"tensors": ["weights"]}),
        ("'head' matches no tensor", {"names": ["head"]}),
        ("'Conv3d' matches no tensor", {"types": ["Conv3d"]}),
    ],
)
def test_misspelt_selections_are_errors_and_change_nothing(words, arguments):
    handle = convert_to_fixed_point(small_net())
    with pytest.raises(RecipeError, match=words):
        handle.set_method(**{"method": "none", **arguments})
    assert set(methods_of(handle).values()) == {"auto"}


def test_live_settings_dump_and_load_exactly():
    handle = convert_to_fixed_point(small_net(), FixedPointSettings.uniform(bits=5, compat="nics"))
    handle.set_method("none", types="Conv2d")
    other = convert_to_fixed_point(small_net())
    other.load(handle.dump())
    assert other.dump() == handle.dump()
    assert methods_of(other) == methods_of(handle)
    with pytest.raises(RecipeError, match="belong to another model"):
        other.load({"0.weight": {"bits": 4}})
    with pytest.raises(RecipeError, match="no field 'bit'"):
        other.load({name: {"bit": 4} for name in handle.dump()})
    assert other.dump() == handle.dump()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_resuming_from_a_state_dict_continues_bit_for_bit(rounding):
    def made():
        model = small_net()
        settings = FixedPointSettings.uniform(bits=6, rounding=rounding, granularity="tensor")
        convert_to_fixed_point(model, settings, norms="quantized")
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = made()
    train(model, optimizer, range(3))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict())), torch.get_rng_state()
    train(model, optimizer, range(3, 6))

    again, other_optimizer = made()
    (weights, moments), random = saved
    again.load_state_dict(weights)
    other_optimizer.load_state_dict(moments)
    torch.set_rng_state(random)
    train(again, other_optimizer, range(3, 6))
    for (name, a), (_, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model.eval()(x), again.eval()(x))


def test_channel_scales_pass_through_a_state_dict():
    settings = FixedPointSettings(activation=TensorSetting(granularity="channel"))
    model, other = small_net(), small_net()
    convert_to_fixed_point(model, settings)
    handle = convert_to_fixed_point(other, settings)
    model(torch.randn(2, 1, 8, 8))
    other.load_state_dict(model.state_dict())
    assert len(next(row for row in handle.rows() if row.name == "0.activation").scales) == 4
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model.eval()(x), other.eval()(x))


def test_a_float_checkpoint_loads_and_its_weights_are_measured():
    plain, model = small_net(), small_net()
    with torch.no_grad():
        plain[4].weight.mul_(1000)
    handle = convert_to_fixed_point(model)
    model.load_state_dict(plain.state_dict())
    assert next(row for row in handle.rows() if row.name == "4.weight").scales == (128.0,)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_settings_and_scales_of_its_own(way):
    model = small_net()
    handle = convert_to_fixed_point(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(2))
    twin = way(model)
    twin_handle = FixedPointModel.of(twin)
    assert twin_handle.dump() == handle.dump()
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(model.eval()(x), twin.eval()(x))
    before = handle.rows()
    twin_handle.set_method("none", tensors="weight")
    twin.train()(100 * x)
    assert handle.rows() == before
    assert twin_handle.rows() != before
    twin_handle.remove()
    assert handle.rows() == before


def test_trains_as_well_as_float_on_a_simple_task():
    def accuracy(*, bits):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        if bits:
            convert_to_fixed_point(model, FixedPointSettings.uniform(bits=bits))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        x = torch.randn(512, 8)
        y = (x[:, :4].sum(1) * x[:, 4] > 0).long()
        for _ in range(300):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        return (model(x).argmax(1) == y).float().mean().item()

    assert accuracy(bits=8) > accuracy(bits=None) - 0.03 > 0.85
