import pytest
import torch
from torch import nn

from roundoff.precision.fixed import FixedPointSettings, TensorSetting, convert_to_fixed_point

NARROW = FixedPointSettings.uniform(bits=4)


def test_float_norms_keep_parameters_and_statistics_but_their_outputs_are_activations():
    model = nn.BatchNorm1d(3)
    handle = convert_to_fixed_point(model, NARROW)
    assert [row.name for row in handle.rows()] == ["<model>.activation", "<model>.error"]
    assert model(torch.randn(50, 3)).unique().numel() <= 16


def test_a_running_mean_of_100_is_reached_not_frozen_at_64():
    model = nn.BatchNorm1d(1)
    convert_to_fixed_point(model, NARROW, norms="quantized")
    x = torch.tensor([[99.0], [101.0]])
    for _ in range(200):
        model(x)
    assert model.running_mean.item() == pytest.approx(100, abs=1e-3)


def test_accumulated_on_quantized_values_statistics_are_frozen_far_from_the_truth():
    """What the library does whose numbers `accumulated` reproduces; the two tests next to this one are the cure."""
    torch.manual_seed(0)
    settings = FixedPointSettings.uniform(bits=4, compat="nics")
    mean, variances = nn.BatchNorm1d(1), nn.BatchNorm1d(8)
    for model in (mean, variances):
        convert_to_fixed_point(model, settings, norms="accumulated")
    x, spread = torch.tensor([[99.0], [101.0]]), 2.0 ** -torch.arange(8)
    for _ in range(200):
        mean(x)
        variances(torch.randn(64, 8) * spread)
    # Each step adds a tenth of 36, which is less than half of the quantizer's step of 8.
    assert mean.running_mean.item() == pytest.approx(64 + 3.6, abs=1e-3)
    far = variances.running_var > 2 * spread.square()
    assert int(far.sum()) >= 5


def test_running_variances_do_not_become_zero():
    torch.manual_seed(0)
    model = nn.BatchNorm1d(8)
    convert_to_fixed_point(model, NARROW, norms="quantized")
    spread = 2.0 ** -torch.arange(8)
    for _ in range(200):
        model(torch.randn(64, 8) * spread)
    torch.testing.assert_close(model.running_var, spread.square(), rtol=0.2, atol=0)


def test_statistics_are_quantized_on_use_in_eval():
    torch.manual_seed(0)
    model = nn.BatchNorm1d(4, affine=False)
    settings = FixedPointSettings(buffer=TensorSetting(bits=4), activation=TensorSetting(method="none"))
    handle = convert_to_fixed_point(model, settings, norms="quantized")
    for _ in range(10):
        model(torch.randn(32, 4) * 3 + 1)
    scales = {row.name: row.scales[0] for row in handle.rows() if row.kind == "buffer"}
    assert scales == {"<model>.running_mean": 2.0, "<model>.running_var": 8.0}
    mean = (model.running_mean / 0.25).round().clamp(-8, 7) * 0.25
    var = model.running_var.round().clamp(-8, 7)
    x = torch.randn(5, 4)
    model.eval()
    torch.testing.assert_close(model(x), (x - mean) / (var + model.eps).sqrt())
    assert not torch.equal(model.running_mean, mean)


def test_training_does_not_see_the_quantized_statistics():
    torch.manual_seed(0)
    plain, model = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    settings = FixedPointSettings(activation=TensorSetting(method="none"), norm=TensorSetting(method="none"))
    convert_to_fixed_point(model, settings, norms="quantized")
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        assert torch.equal(model(x), plain(x))
    assert torch.equal(model.running_var, plain.running_var)
    assert model.num_batches_tracked == 3


def test_parameters_of_norms_have_a_setting_of_their_own():
    model = nn.LayerNorm(4)
    handle = convert_to_fixed_point(model, FixedPointSettings(norm=TensorSetting(bits=3)), norms="quantized")
    bits = {row.name: row.setting.bits for row in handle.rows()}
    assert bits["<model>.weight"] == bits["<model>.bias"] == 3
    assert bits["<model>.weight_gradient"] == 8
