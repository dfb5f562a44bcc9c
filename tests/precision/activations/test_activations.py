"""Compressed activations from a user's side: outputs, gradients, what is left behind."""

import copy
import gc
import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from roundoff.precision.activations import ActivationSettings, compress_activations


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) + x)


def small_net(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.ReLU())
    return nn.Sequential(stem, Block(width), Block(width), nn.Flatten(), nn.Linear(width * 64, 10))


def batch(size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator)


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def relative_error(candidate: Tensor, reference: Tensor) -> float:
    return float((candidate - reference).norm() / reference.norm())


@pytest.mark.parametrize(("bits", "at_most"), [(2, 1.0), (4, 0.2), (8, 0.02)])
def test_outputs_are_the_same_and_gradients_are_near(bits, at_most):
    model, (x, y) = small_net(), batch()
    plain_output, plain = model(x), gradient(model, x, y)
    with compress_activations(model, ActivationSettings(bits=bits)):
        assert torch.equal(model(x), plain_output)
        assert 0 < relative_error(gradient(model, x, y), plain) < at_most


def test_32_bits_change_nothing():
    model, (x, y) = small_net(), batch()
    plain = gradient(model, x, y)
    with compress_activations(model, ActivationSettings(bits=32)) as compressed:
        assert torch.equal(gradient(model, x, y), plain)
        assert compressed.report().ratio == 1


def uniform_rounding(bits: int) -> saved_tensors_hooks:
    """Stochastic rounding between the lowest and the highest of 64 values, without a code of its own for zero."""

    def pack(x: Tensor) -> tuple[Tensor, torch.Size] | Tensor:
        if isinstance(x, nn.Parameter) or x.dtype != torch.float32 or x.numel() % 64 or x.numel() < 1024:
            return x.detach()
        rows = x.detach().reshape(-1, 64)
        low = rows.amin(1, keepdim=True)
        step = ((rows.amax(1, keepdim=True) - low) / ((1 << bits) - 1)).clamp(min=1e-12)
        return ((rows - low) / step + torch.rand_like(rows)).floor() * step + low, x.shape

    return saved_tensors_hooks(pack, lambda saved: saved if isinstance(saved, Tensor) else saved[0].view(saved[1]))


@pytest.mark.parametrize(("bits", "at_most"), [(2, 0.10), (4, 0.015)])
def test_a_code_of_its_own_for_zero_keeps_the_gradient_without_bias(bits, at_most):
    model, (x, y) = small_net(), batch()
    plain = gradient(model, x, y)
    num_draws = 100

    def bias() -> float:
        draws = torch.stack([gradient(model, x, y) for _ in range(num_draws)])
        noise = draws.var(0).sum() / num_draws
        return float(((draws.mean(0) - plain).square().sum() - noise).clamp(min=0).sqrt() / plain.norm())

    with compress_activations(model, ActivationSettings(bits=bits)):
        ours = bias()
    with uniform_rounding(bits):
        without = bias()
    assert ours < at_most
    assert ours < without / 4


def test_the_same_seed_gives_the_same_gradients_and_a_restored_state_too():
    model, (x, y) = small_net(), batch()
    with compress_activations(model, ActivationSettings(bits=2)):
        torch.manual_seed(5)
        first, state = gradient(model, x, y), torch.get_rng_state()
        second = gradient(model, x, y)
        torch.manual_seed(5)
        assert torch.equal(gradient(model, x, y), first)
        torch.set_rng_state(state)
        assert torch.equal(gradient(model, x, y), second)
        assert not torch.equal(first, second)


def test_a_forward_draws_one_number_from_the_default_generator():
    model, (x, y) = small_net(), batch()
    with compress_activations(model):
        torch.manual_seed(5)
        gradient(model, x, y)
        after = torch.get_rng_state()
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.get_rng_state(), after)


def test_a_generator_of_its_own_leaves_the_default_one_alone():
    model, (x, y) = small_net(), batch()
    before = torch.get_rng_state()
    with compress_activations(model, generator=torch.Generator().manual_seed(3)):
        gradient(model, x, y)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_eval_and_no_grad_are_left_alone(mode):
    model, (x, _) = small_net(), batch()
    state = torch.get_rng_state()
    with compress_activations(model) as compressed:
        if mode == "eval":
            model.eval()(x)
        else:
            with torch.no_grad():
                model(x)
        assert compressed.report().sites == ()
    assert torch.equal(torch.get_rng_state(), state)


def test_leaves_nothing_behind_when_it_is_removed():
    model, (x, y) = small_net(), batch()
    plain = gradient(model, x, y)
    compressed = compress_activations(model)
    loss = F.cross_entropy(model(x), y)
    compressed.remove()
    model.zero_grad()
    loss.backward()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(gradient(model, x, y), plain)


class Stumbling(nn.Module):
    error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return x


def saved_exactly() -> bool:
    """Whether autograd saves tensors as they are: no hooks are in place."""
    a = torch.randn(2048, requires_grad=True) * 2
    return torch.equal((a * a).grad_fn._saved_self, a)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_exception_in_forward_leaves_no_hook_in_place(error):
    stumbling = Stumbling()
    model = nn.Sequential(nn.Linear(64, 64), stumbling, nn.Linear(64, 64))
    x = torch.randn(64, 64)
    compressed = compress_activations(model, ActivationSettings(bits=2))
    stumbling.error = error
    with pytest.raises(type(error)):
        model(x)
    stumbling.error = None
    if isinstance(error, KeyboardInterrupt):
        assert not saved_exactly()  # torch does not run hooks at Ctrl-C; the next call mends it
        model(x)
    assert saved_exactly()
    model(x).sum().backward()
    assert [site.site for site in compressed.report().sites] == ["0", "2"]
    compressed.remove()
    assert saved_exactly()


def test_a_model_that_calls_itself_is_one_forward():
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            x = self.layer(x).relu()
            return self(x, depth - 1) if depth else x

    model = Again()
    with compress_activations(model, ActivationSettings(bits=8)) as compressed:
        model(torch.randn(64, 64)).sum().backward()
        report = compressed.report()
    assert {site.site: site.num_tensors for site in report.sites} == {"<model>": 3, "layer": 1}


def test_a_part_called_by_itself_is_left_alone():
    model, (x, _) = small_net(), batch()
    with compress_activations(model) as compressed:
        model[0](x).sum().backward()
        assert compressed.report().sites == ()


def test_backward_can_run_twice_on_one_graph():
    model, (x, y) = small_net(), batch()
    with compress_activations(model, ActivationSettings(bits=2)):
        loss = F.cross_entropy(model(x), y)
        first = torch.autograd.grad(loss, model.parameters(), retain_graph=True)
        second = torch.autograd.grad(loss, model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_memory_is_freed_by_the_backward_and_no_cycle_holds_it():
    def stored() -> set[int]:
        return {id(o) for o in gc.get_objects() if type(o).__name__ in ("Saved", "GroupCodes", "Codes", "Kept")}

    model, (x, y) = small_net(), batch()
    gc.collect()
    before = stored()
    gc.disable()
    try:
        with compress_activations(model):
            for _ in range(2):
                F.cross_entropy(model(x), y).backward()
            model(x)  # a graph that is dropped without backward
        after = stored()
    finally:
        gc.enable()
    assert after <= before


def test_a_copy_of_the_model_is_compressed_by_itself():
    model, (x, y) = small_net(), batch()
    compressed = compress_activations(model, ActivationSettings(bits=2))
    twin = copy.deepcopy(model)
    plain = gradient(small_net(), x, y)
    assert relative_error(gradient(twin, x, y), plain) > 0
    assert compressed.report().sites == ()
    compressed.remove()
    assert torch.equal(gradient(model, x, y), plain)


def test_a_compressed_model_can_be_pickled():
    model, (x, _) = small_net(), batch()
    file = io.BytesIO()
    with compress_activations(model):
        torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), model(x))


def test_two_models_may_be_compressed_and_one_inside_the_other():
    model, (x, y) = small_net(), batch()
    inner = compress_activations(model[1], ActivationSettings(bits=8))
    outer = compress_activations(model, ActivationSettings(bits=2))
    gradient(model, x, y)
    assert {site.site for site in inner.report().sites} == {"<model>", "conv", "norm"}
    assert "2.norm" in {site.site for site in outer.report().sites}
    outer.remove()
    inner.remove()
