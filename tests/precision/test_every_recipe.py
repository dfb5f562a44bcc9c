"""The contract that every recipe keeps."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from roundoff.precision import RecipeOptimizer, apply_recipe, known_recipes
from tests.precision.small_trainings import IMAGES, accuracy, batch_of, prepared, sgd, small_net, train, weights_of

NAMES = [recipe.name for recipe in known_recipes()]
NATIVE = ["half", "half-by-hand", "O1", "O2", "O3", "bf16", "bf16-master", "bf16-stochastic", "bf16-kahan"]
CASES = [*((name, "auto") for name in [*NAMES, "O2+act4", "O2+adam8"]), *((name, "native") for name in NATIVE)]
every_recipe = pytest.mark.parametrize(("name", "arithmetic"), CASES, ids=lambda value: value)


@every_recipe
def test_the_loss_falls(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    losses = train(model, optimizer, range(25))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert torch.isfinite(weights_of(model)).all()
    assert optimizer.num_skips == 0


@every_recipe
def test_gives_a_real_optimizer_that_schedulers_act_on(name: str, arithmetic: str):
    model = small_net()
    inner = sgd(model)
    model, optimizer = apply_recipe(model, inner, name, arithmetic=arithmetic)
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, range(1))
    scheduler.step()
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.05
    cyclic = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)
    train(model, optimizer, range(1))
    cyclic.step()


@every_recipe
def test_a_resumed_training_goes_on_exactly(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    train(model, optimizer, range(3))
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    random = torch.get_rng_state()
    wanted = train(model, optimizer, range(3, 6))
    resumed, resumed_optimizer = prepared(name, seed=1, arithmetic=arithmetic)
    resumed.load_state_dict(checkpoint[0])
    resumed_optimizer.load_state_dict(checkpoint[1])
    torch.set_rng_state(random)
    assert train(resumed, resumed_optimizer, range(3, 6)) == wanted
    assert torch.equal(weights_of(resumed), weights_of(model))


@every_recipe
def test_a_checkpoint_is_read_without_pickle(name: str, arithmetic: str, tmp_path):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    train(model, optimizer, range(1))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    loaded = torch.load(tmp_path / "c.pt", weights_only=True)
    optimizer.load_state_dict(loaded["optimizer"])


@pytest.mark.parametrize("after", ["fp32", "O2", "half", "bf16-kahan", "O1"])
@pytest.mark.parametrize("before", ["fp32", "O2", "half", "bf16-stochastic", "fp8-delayed"])
def test_resumes_a_checkpoint_of_another_recipe(before: str, after: str):
    model, optimizer = prepared(before)
    losses = train(model, optimizer, range(15))
    resumed, resumed_optimizer = prepared(after, seed=1)
    resumed.load_state_dict(model.state_dict())
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    assert train(resumed, resumed_optimizer, range(15, 20))[0] < 0.8 * losses[0]


def test_a_plain_optimizer_reads_a_recipes_checkpoint_and_the_other_way_round():
    model, optimizer = prepared("O2")
    train(model, optimizer, range(2))
    plain = small_net()
    plain_optimizer = sgd(plain)
    plain.load_state_dict(model.state_dict())
    plain_optimizer.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(plain_optimizer.state_dict())
    train(model, optimizer, range(2))


@every_recipe
def test_accumulates_over_microbatches(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    losses = []
    for step in range(12):
        x, y = batch_of(step)
        total = 0.0
        for x_part, y_part in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.cross_entropy(model(x_part), y_part) / 2
            optimizer.backward(loss)
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    assert losses[-1] < losses[0]


@every_recipe
def test_clips_unscaled_gradients(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    x, y = batch_of(0)
    optimizer.backward(F.cross_entropy(model(x), y))
    before = optimizer.clip_grad_norm_(0.1)
    assert 0.1 < before < 100
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.linalg.vector_norm(torch.stack([p.grad.float().norm() for p in parameters]))
    assert norm == pytest.approx(0.1, rel=0.02)
    optimizer.step()
    assert optimizer.last_overflow is None


@every_recipe
def test_unscales_what_torchs_own_clipping_reads(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    x, y = batch_of(0)
    optimizer.backward(F.cross_entropy(model(x), y))
    optimizer.unscale_()
    assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) < 100
    before = weights_of(model)
    optimizer.step()
    assert 0 < (weights_of(model) - before).norm() < 0.05


@every_recipe
def test_steps_with_a_closure(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    x, y = batch_of(0)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        optimizer.backward(loss)
        return loss

    losses = [optimizer.step(closure).item() for _ in range(6)]
    assert losses[-1] < losses[0]


@every_recipe
def test_evaluates_the_same_twice_and_without_gradients(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    train(model, optimizer, range(2))
    model.eval()
    with torch.no_grad():
        first, second = model(IMAGES[:32]), model(IMAGES[:32])
    assert torch.equal(first, second)
    assert first.dtype is (torch.float16 if name == "half-by-hand" else torch.float32)
    assert not first.requires_grad


@every_recipe
def test_a_copy_of_the_model_is_its_own(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    train(model, optimizer, range(2))
    copied = copy.deepcopy(model).eval()
    before = accuracy(copied)
    train(model, optimizer, range(2, 6))
    assert accuracy(copied) == before
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    saved = copied.state_dict()
    assert not any(saved[name].any() for name, _ in copied.named_parameters())
    assert accuracy(model) > 0.15


@every_recipe
def test_leaves_no_hook_behind_when_removed(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    train(model, optimizer, range(1))
    optimizer.remove()
    for module in model.modules():
        hooks = (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._state_dict_hooks,
            module._load_state_dict_pre_hooks,
            module._load_state_dict_post_hooks,
        )
        assert not any(hooks)
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert not parameter._post_accumulate_grad_hooks
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.float() if tensor.is_floating_point() else tensor.data
    model(IMAGES[:4])


@every_recipe
def test_says_what_it_does(name: str, arithmetic: str):
    _, optimizer = prepared(name, arithmetic=arithmetic)
    assert optimizer.report().startswith(f"recipe      {name}: ")
    assert f"arithmetic  {optimizer.arithmetic}" in optimizer.report()


def test_a_crash_in_the_forward_leaves_no_mode_behind():
    for name in ("O1", "O2", "fp8", "amp-fp16", "ascend-fp16"):
        model, optimizer = prepared(name)
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 3, 8, 8))
        assert not torch.overrides._get_current_function_mode_stack()
        assert not torch.is_autocast_enabled("cpu")
        assert isinstance(optimizer, RecipeOptimizer)
        train(model, optimizer, range(1))
