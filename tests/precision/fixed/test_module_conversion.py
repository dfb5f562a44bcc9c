"""Conversion of existing models, module by module."""

import copy
import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.errors import RecipeError
from roundoff.precision.fixed import FixedPointModel, FixedPointSettings, TensorSetting, convert_to_fixed_point

NONE = TensorSetting(method="none")


def on_grid(x: Tensor, step: float) -> bool:
    return bool(((x / step).round() * step == x).all())


class Own(nn.Module):
    """A module of a user, with a parameter and code of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(6))
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x) * self.gain)


MODULES = {
    "Linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "Bilinear": (lambda: nn.Bilinear(6, 6, 4), None),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 8)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "Conv3d": (lambda: nn.Conv3d(3, 4, 3), (2, 3, 5, 5, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (3, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "PReLU": (lambda: nn.PReLU(), (3, 6)),
    "LSTM": (lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True), (7, 2, 6)),
    "GRU": (lambda: nn.GRU(6, 5), (7, 2, 6)),
    "LSTMCell": (lambda: nn.LSTMCell(6, 5), (2, 6)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)),
    "Own": (Own, (3, 6)),
}


def inputs_of(shape):
    return (torch.randn(3, 6), torch.randn(3, 6)) if shape is None else (torch.randn(shape),)


def first_tensor(output):
    return output if isinstance(output, Tensor) else first_tensor(output[0])


@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_is_used_quantized_and_stays_float(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    model, inputs = make(), inputs_of(shape)
    reference = copy.deepcopy(model)
    handle = convert_to_fixed_point(model, FixedPointSettings.uniform(bits=4), norms="quantized")
    parameters = {key: value.clone() for key, value in model.named_parameters()}

    output = first_tensor(model(*inputs))
    output.square().sum().backward()

    for key, value in model.named_parameters():
        assert torch.equal(value, parameters[key])
        assert not on_grid(value.detach(), 2.0**-10) or value.detach().unique().numel() <= 2
        assert value.grad is not None
    scales = {row.name: row.scales for row in handle.rows()}
    assert all(scales[key] for key in scales if key.endswith(("weight_gradient", "bias_gradient", "gain_gradient")))
    row = next(row for row in handle.rows() if row.name == "<model>.activation")
    if row.scales:  # else the last module inside has quantized it
        assert on_grid(output.detach(), row.setting.step_of(row.scales[0]))

    # The same module in float, holding weights that were rounded by hand, gives the same before its output is rounded.
    handle.set_method("none", tensors=["activation", "error"])
    by_hand = {
        row.name.removeprefix("<model>."): row for row in handle.rows() if row.kind in ("weight", "bias", "norm")
    }
    with torch.no_grad():
        for key, value in reference.named_parameters():
            row = by_hand[key]
            step = row.setting.step_of(row.scales[0])
            value.copy_(((value / step).round()).clamp(-8, 7) * step)
    torch.manual_seed(1)
    expected = first_tensor(reference(*inputs))
    torch.manual_seed(1)
    assert torch.equal(first_tensor(model(*inputs)), expected)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch 2.12 warns of every sparse tensor, once
def test_an_embedding_with_sparse_gradients():
    model = nn.Embedding(10, 4, sparse=True)
    convert_to_fixed_point(model, FixedPointSettings.uniform(bits=3))
    model(torch.tensor([1, 2, 1])).sum().backward()
    assert model.weight.grad.is_sparse
    assert model.weight.grad.to_dense()[1].tolist() == [1.5] * 4  # 2 saturates to 2 - step; others are 0.75 -> 1


def test_attention_also_quantizes_the_projection_it_reads_itself():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    handle = convert_to_fixed_point(model, FixedPointSettings.uniform(bits=4))
    x = torch.randn(2, 3, 8)
    model(x, x, x)[0].sum().backward()
    names = [row.name for row in handle.rows() if row.scales]
    assert {"<model>.in_proj_weight", "out_proj.weight", "out_proj.weight_gradient"} <= set(names)
    step = next(row for row in handle.rows() if row.name == "out_proj.weight").scales[0] / 8
    seen = []
    model.register_forward_pre_hook(lambda module, args: seen.append(module.out_proj.weight.detach().clone()))
    model(x, x, x)
    assert on_grid(seen[0], step)
    assert not on_grid(model.out_proj.weight.detach(), step)


def test_a_fused_path_of_torch_does_not_slip_past():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2).eval()
    handle = convert_to_fixed_point(model, FixedPointSettings.uniform(bits=4))
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        without_grad = model(x)
    assert torch.equal(without_grad, model(x))
    assert all(row.scales for row in handle.rows() if row.kind == "weight")
    assert without_grad.unique().numel() <= 16


def test_the_result_of_code_between_modules_is_quantized_where_a_module_returns_it():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return F.relu(self.inner(x) + x)

    model = nn.Sequential(Residual(), nn.Identity())
    handle = convert_to_fixed_point(model, FixedPointSettings.uniform(bits=4))
    out = model(torch.randn(5, 4))
    assert out.unique().numel() <= 8
    assert next(row for row in handle.rows() if row.name == "0.activation").scales


def test_an_output_that_is_quantized_already_is_left_alone():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    model = Wrapper()
    handle = convert_to_fixed_point(model)
    for training in (True, False):
        model.train(training)(torch.randn(5, 4))
        assert next(row for row in handle.rows() if row.name == "<model>.activation").scales == ()


def test_a_scalar_is_a_loss_and_stays():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            logits = self.inner(x)
            return {"loss": logits.square().mean() * math.pi, "logits": (logits * 1.01,)}

    model = WithLoss()
    convert_to_fixed_point(model, FixedPointSettings.uniform(bits=3))
    out = model(torch.randn(5, 4))
    assert out["logits"][0].unique().numel() <= 8
    assert not on_grid(out["loss"].detach(), 2.0**-10)


def test_more_outputs_than_foreseen_get_scales_of_their_own():
    class Two(nn.Module):
        def forward(self, x):
            return x * 1.0, x * 100.0

    model = Two()
    handle = convert_to_fixed_point(model)
    model(torch.tensor([0.9]))
    scales = {row.name: row.scales for row in handle.rows()}
    assert scales["<model>.activation"] == (1.0,)
    assert scales["<model>.activation1"] == (128.0,)
    other, third = Two(), Two()
    convert_to_fixed_point(other)
    other.load_state_dict(model.state_dict())
    assert FixedPointModel.of(other).rows()[2].scales == (128.0,)
    third_handle = convert_to_fixed_point(third)
    third_handle.load(handle.dump())
    assert third_handle.dump() == handle.dump()


def test_in_place_activations_are_quantized_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    convert_to_fixed_point(model, FixedPointSettings.uniform(bits=4))
    model(torch.randn(3, 4)).sum().backward()
    assert model[0].weight.grad is not None


def test_a_failing_forward_leaves_the_module_as_it_was():
    model = nn.Linear(4, 4)
    convert_to_fixed_point(model)
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 5))
    assert model.weight is model._parameters["weight"]
    model(torch.randn(3, 4)).sum().backward()
    assert model.weight.grad is not None


def test_remove_gives_the_float_model_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MultiheadAttention(4, 2))
    keys, x = list(model.state_dict()), torch.randn(2, 3, 8, 8)
    before = model[0](x)
    handle = convert_to_fixed_point(model, norms="quantized")
    assert not torch.equal(model[0](x), before)
    handle.remove()
    assert torch.equal(model[0](x), before)
    assert list(model.state_dict()) == keys
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks
    assert not any("fixed" in key for module in model.modules() for key in module.__dict__)
    convert_to_fixed_point(model)


def test_converting_twice_is_an_error():
    model = nn.Linear(2, 2)
    convert_to_fixed_point(model)
    with pytest.raises(RecipeError, match="already converted to fixed point"):
        convert_to_fixed_point(model)
    with pytest.raises(RecipeError, match="is not in fixed point"):
        FixedPointModel.of(nn.Linear(2, 2))


def test_overrides_that_match_nothing_are_errors_and_leave_the_model_alone():
    model = nn.Sequential(nn.Linear(2, 2))
    for override, words in [
        ({"types": {"Conv2d": {"weight": NONE}}}, "type 'Conv2d' matches nothing"),
        ({"sites": {"head.*": {"weight": NONE}}}, r"site 'head.\*' matches nothing"),
        ({"sites": {"0": {"norm": TensorSetting()}}}, "norms are float"),
    ]:
        with pytest.raises(RecipeError, match=words):
            convert_to_fixed_point(model, FixedPointSettings(**override))
    with pytest.raises(RecipeError, match="allowed: float, quantized"):
        convert_to_fixed_point(model, norms="fixed")
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_overrides_reach_their_modules():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    settings = FixedPointSettings(sites={"1": {"weight": TensorSetting(bits=2)}})
    rows = {row.name: row.setting.bits for row in convert_to_fixed_point(model, settings).rows()}
    assert (rows["0.weight"], rows["1.weight"]) == (8, 2)


def test_half_precision_models_keep_their_scales():
    model = nn.Linear(4, 4)
    handle = convert_to_fixed_point(model)
    model.bfloat16()
    model(torch.randn(3, 4, dtype=torch.bfloat16)).sum().backward()
    assert all(row.scales for row in handle.rows())


def test_checkpointed_blocks_give_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    settings = FixedPointSettings.uniform(bits=4, rounding="stochastic")
    convert_to_fixed_point(model, settings)
    x, gradients = torch.randn(5, 4), []
    for run in (lambda: model(x), lambda: checkpoint(model, x, use_reentrant=False)):
        torch.manual_seed(1)
        model.zero_grad()
        run().sum().backward()
        gradients.append(model[0].weight.grad.clone())
    assert torch.equal(*gradients)


def test_lists_of_parameters_are_quantized_where_their_module_reads_them():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.many = nn.ParameterList([torch.randn(3), torch.randn(3)])
            self.named = nn.ParameterDict({"gain": torch.randn(3)})

        def forward(self, x):
            return x * self.many[0] + self.many[1] * self.named["gain"]

    torch.manual_seed(0)
    model, plain = Lists(), Lists()
    settings = FixedPointSettings.uniform(bits=3)
    handle = convert_to_fixed_point(model, settings)
    model(torch.ones(3)).sum().backward()
    assert {row.name for row in handle.rows() if row.was_used and row.kind == "weight"} == {
        "many.0", "many.1", "named.gain"}  # fmt: skip
    assert isinstance(model.many[0], nn.Parameter)
    assert model.named["gain"].grad is not None
    model.load_state_dict(plain.state_dict())
    model(torch.ones(3))


def test_a_parameter_that_is_read_past_its_module_shows_as_unused():
    class Past(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return F.linear(x, self.inner.weight)

    model = Past()
    handle = convert_to_fixed_point(model)
    model(torch.ones(2, 4)).sum().backward()
    assert not next(row for row in handle.rows() if row.name == "inner.weight").was_used


def test_an_interrupt_leaves_nothing_that_matters():
    class Interrupted(nn.Linear):
        is_interrupted = True

        def forward(self, x):
            if self.is_interrupted:
                raise KeyboardInterrupt
            return super().forward(x)

    model = nn.Sequential(Interrupted(4, 4))
    convert_to_fixed_point(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 4))
    model[0].is_interrupted = False
    model(torch.ones(2, 4)).sum().backward()
    assert model[0].weight is model[0]._parameters["weight"]
    copy.deepcopy(model)


class Wrapper(nn.Module):
    """Returns what the module inside returns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_a_module_inside_that_leaves_its_output_float_is_not_overruled():
    model = Wrapper()
    settings = FixedPointSettings(activation=TensorSetting(bits=2), sites={"inner": {"activation": NONE}})
    convert_to_fixed_point(model, settings)
    assert model(torch.randn(8, 4)).unique().numel() > 100


def test_an_override_of_the_outer_module_counts_even_if_the_inner_one_has_quantized():
    model = nn.Sequential(Wrapper())
    settings = FixedPointSettings(types={"Wrapper": {"activation": TensorSetting(bits=2)}})
    handle = convert_to_fixed_point(model, settings)
    assert model(torch.randn(8, 4)).unique().numel() <= 4
    assert next(row for row in handle.rows() if row.name == "0.activation").was_used


def test_an_override_of_a_whole_branch_quantizes_once():
    model = nn.Sequential(Wrapper())
    settings = FixedPointSettings(sites={"0": {"activation": TensorSetting(bits=2)}})
    handle = convert_to_fixed_point(model, settings)
    model(torch.randn(8, 4))
    assert [row.name for row in handle.rows() if row.kind == "activation" and row.was_used] == ["0.inner.activation"]


def test_an_empty_batch_changes_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    handle = convert_to_fixed_point(model, FixedPointSettings(error=TensorSetting(granularity="batch")))
    model(torch.zeros(0, 4)).sum().backward()
    assert all(row.scales == () for row in handle.rows() if row.kind in ("activation", "error"))
    model(torch.randn(2, 4)).sum().backward()


def test_padded_sequences_in_an_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    convert_to_fixed_point(model)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        assert model(torch.randn(2, 3, 8), src_key_padding_mask=padding).shape == (2, 3, 8)


def test_what_a_model_returns_can_be_saved_like_any_tensor(tmp_path):
    model = Wrapper()
    convert_to_fixed_point(model)
    out = model(torch.randn(2, 4)).detach()
    with torch.no_grad():
        straight = model(torch.randn(2, 4))
    torch.save((out, straight), tmp_path / "out.pt")
    assert torch.equal(torch.load(tmp_path / "out.pt")[1], straight)
    assert not straight.__dict__


def test_tensors_are_not_kept_alive():
    model = Wrapper()
    convert_to_fixed_point(model)
    out = weakref.ref(model(torch.randn(2, 4)))
    assert out() is None
