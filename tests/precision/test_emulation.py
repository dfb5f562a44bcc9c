"""Emulated and native arithmetic agree, and the emulation believes what the model's code believes."""

import copy
import inspect

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.formats import round_to
from roundoff.precision import apply_recipe
from tests.precision.small_trainings import IMAGES, LABELS, prepared


def both(model: nn.Module, recipe: str) -> tuple[nn.Module, nn.Module]:
    pair = []
    for arithmetic in ("native", "emulated"):
        twin = copy.deepcopy(model)
        inner = torch.optim.SGD(twin.parameters(), lr=0.1)
        pair.append(apply_recipe(twin, inner, recipe, arithmetic=arithmetic)[0])
    return pair[0], pair[1]


def ulps_apart(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    def codes(x: Tensor) -> Tensor:
        bits = x.to(dtype).view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (codes(a) - codes(b)).abs()


@pytest.mark.parametrize(
    ("recipe", "dtype"), [("half", torch.float16), ("bf16", torch.bfloat16), ("O1", torch.float16)]
)
@pytest.mark.parametrize("layer", ["conv", "linear"])
def test_a_forward_agrees_with_the_native_one_in_99_percent_and_the_rest_by_an_ulp(recipe, dtype, layer):
    torch.manual_seed(0)
    model = nn.Conv2d(16, 16, 3, padding=1, bias=False) if layer == "conv" else nn.Linear(64, 64)
    x = torch.randn(16, 16, 14, 14) if layer == "conv" else torch.randn(256, 64)
    native, emulated = both(model, recipe)
    apart = ulps_apart(native(x), emulated(x), dtype)
    assert (apart == 0).float().mean() > 0.99
    # Sums that nearly cancel keep the error of their terms.
    large = native(x).abs() > 0.1
    assert apart[large].max() <= 1


def test_a_linear_layers_gradients_agree_with_the_native_ones():
    torch.manual_seed(0)
    native, emulated = both(nn.Linear(64, 32), "half")
    x = torch.randn(128, 64)
    for model in (native, emulated):
        model(x).square().sum().backward()
    apart = ulps_apart(native.weight.grad, emulated.weight.grad, torch.float16)
    assert emulated.weight.grad.dtype is torch.float32
    assert (apart == 0).float().mean() > 0.95
    assert apart.max() <= 2


@pytest.mark.parametrize("recipe", ["half", "O1", "O2", "O3", "bf16"])
def test_a_whole_net_gives_nearly_the_same_loss_and_gradients(recipe: str):
    losses, gradients = [], []
    for arithmetic in ("native", "emulated"):
        model, optimizer = prepared(recipe, arithmetic=arithmetic)
        loss = F.cross_entropy(model(IMAGES[:128]), LABELS[:128])
        optimizer.backward(loss)
        optimizer.unscale_()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    assert (gradients[0] - gradients[1]).norm() < 0.1 * gradients[0].norm()


def test_all_weights_and_buffers_hold_numbers_of_the_format():
    for recipe, fmt in (("half", "fp16"), ("O3", "fp16"), ("bf16", "bf16")):
        model, optimizer = prepared(recipe)
        optimizer.backward(F.cross_entropy(model(IMAGES[:32]), LABELS[:32]))
        grads = [p.grad for p in model.parameters()]
        optimizer.step()
        tensors = [model[0].weight, model[9].weight, grads[0], grads[-1]]
        if recipe == "O3":
            tensors += [model[1].weight, model[1].running_var]
        for tensor in tensors:
            assert torch.equal(tensor.detach(), round_to(tensor.detach(), fmt))


class Curious(nn.Module):
    """Asks for dtypes, casts, and widens on purpose, as models in the wild do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)
        self.seen: list[object] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        self.seen = [x.dtype, self.first.weight.dtype, torch.finfo(x.dtype).max]
        wide = torch.softmax(x.float(), dim=-1)
        self.seen += [wide.dtype, wide.sum().item()]
        mask = torch.zeros(32, dtype=x.dtype).masked_fill(torch.arange(32) > 15, torch.finfo(x.dtype).min)
        x = x + mask.half() * 0 + wide.to(x.dtype)
        self.seen.append(x.dtype)
        return self.second(x)


@pytest.mark.parametrize("recipe", ["half", "O2"])
def test_a_model_that_looks_at_dtypes_sees_the_same_in_both(recipe: str):
    torch.manual_seed(0)
    native, emulated = both(Curious(), recipe)
    outputs = [model(IMAGES[:16]) for model in (native, emulated)]
    assert native.seen[:4] == emulated.seen[:4] == [torch.float16, torch.float16, 65504.0, torch.float32]
    assert native.seen[5] == emulated.seen[5] == torch.float16
    assert native.seen[4] == pytest.approx(emulated.seen[4], rel=1e-6)
    assert torch.allclose(*outputs, rtol=1e-2, atol=2e-3)


def test_a_softmax_widened_with_float_keeps_its_small_numbers():
    class Softmax(nn.Module):
        def __init__(self, wide: bool) -> None:
            super().__init__()
            self.wide = wide
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            x = x * self.scale
            return torch.softmax(x.float() if self.wide else x, dim=-1)

    for wide in (True, False):
        native, emulated = both(Softmax(wide), "half")
        x = torch.tensor([[0.0, -17.5]])
        assert torch.allclose(native(x), emulated(x), rtol=1e-3, atol=0)
        assert bool(emulated(x)[0, 1] > 0) is wide


@pytest.mark.parametrize("recipe", ["half", "O1", "O2", "bf16"])
@pytest.mark.parametrize("kind", ["attention", "lstm", "layer_norm"])
def test_attention_recurrence_and_layer_norm_run_both_ways(recipe: str, kind: str):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(8, 16)
            self.layer = {
                "attention": lambda: nn.MultiheadAttention(16, 2, batch_first=True),
                "lstm": lambda: nn.LSTM(16, 16, batch_first=True),
                "layer_norm": lambda: nn.LayerNorm(16),
            }[kind]()
            self.head = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inside(x.squeeze(1))
            x = self.layer(x) if kind == "layer_norm" else self.layer(*([x] * (3 if kind == "attention" else 1)))[0]
            return self.head(x.mean(1))

    if kind == "lstm" and recipe == "O1":
        pytest.skip("torch has no mixed-dtype LSTM on the CPU")
    torch.manual_seed(0)
    native, emulated = both(Net(), recipe)
    outputs = [model(IMAGES[:16]) for model in (native, emulated)]
    for output in outputs:
        output.sum().backward()
    assert torch.allclose(*outputs, rtol=2e-2, atol=2e-2)
    assert not torch.equal(outputs[1], Net()(IMAGES[:16]))


def test_the_inside_of_attention_is_rounded():
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(16, 2, batch_first=True)
    plain.in_proj_weight.data *= 300
    _, emulated = both(plain, "O2")
    output, _ = emulated(*[torch.randn(2, 4, 16) * 100] * 3)
    assert not torch.isfinite(output).all()  # q @ k overflows fp16


def test_an_overflow_is_an_infinity_as_in_fp16():
    model = nn.Linear(4, 4, bias=False)
    nn.init.constant_(model.weight, 200.0)
    for twin in both(model, "half"):
        assert (twin(torch.full((1, 4), 200.0)) == torch.inf).all()


def test_in_place_functions_and_views_are_rounded_too():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x.flatten(1))
            x += 1 / 3
            x[:, :5].mul_(1 / 3)
            return x.sigmoid_()

    torch.manual_seed(0)
    native, emulated = both(InPlace(), "half")
    apart = ulps_apart(native(IMAGES[:256]), emulated(IMAGES[:256]), torch.float16)
    assert (apart == 0).float().mean() > 0.95
    assert apart.max() <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # by torch.compile itself
@pytest.mark.parametrize("recipe", ["O1", "O2", "half", "nvfp4", "fp8"])
def test_a_compiled_model_trains_as_the_emulation_does(recipe: str):
    def losses(is_compiled: bool) -> list[float]:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.01), recipe)
        x = torch.randn(16, 16)
        call = torch.compile(model, backend="aot_eager") if is_compiled else model
        found = []
        for _ in range(3):
            loss = (call(x) - x).square().mean()
            optimizer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    assert losses(is_compiled=True) == losses(is_compiled=False)
    torch.compiler.reset()


def test_a_copy_of_an_emulated_model_computes_with_its_own_weights():
    model = nn.Sequential(nn.Linear(4, 4))
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.01), "half")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
        twin[0].bias.zero_()
    assert not twin(torch.ones(2, 4)).any()
    assert model(torch.ones(2, 4)).any()
    assert inspect.signature(model.forward) == inspect.signature(nn.Sequential.forward.__get__(model))
    optimizer.remove()
    assert "forward" not in vars(model)
