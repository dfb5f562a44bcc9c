"""Lists of models and optimizers, and several losses with scales of their own, as with apex's amp.initialize."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from roundoff.errors import RecipeError
from roundoff.precision import apply_recipe
from tests.precision.small_trainings import batch_of, sgd, small_net, weights_of

RECIPES = ["fp32", "half", "O1", "O2", "amp-bf16", "fp8", "O2+act4"]


def pair() -> list[nn.Module]:
    return [small_net(seed=0), small_net(seed=1)]


def losses_of(models, optimizers, steps: int) -> list[float]:
    found = []
    for step in range(steps):
        x, y = batch_of(step)
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_list_of_models_trains_like_each_alone(recipe: str):
    models, optimizers = apply_recipe(together := pair(), [sgd(model) for model in together], recipe)
    alone = [apply_recipe(model, sgd(model), recipe) for model in pair()]
    torch.manual_seed(0)
    found = losses_of(models, optimizers, 4)
    torch.manual_seed(0)
    assert found == losses_of([model for model, _ in alone], [optimizer for _, optimizer in alone], 4)
    for model, (other, _) in zip(models, alone, strict=True):
        assert torch.equal(weights_of(model), weights_of(other))
        assert {k: v.dtype for k, v in model.state_dict().items()} == {
            k: v.dtype for k, v in other.state_dict().items()
        }


def test_one_optimizer_can_hold_the_weights_of_two_models():
    models = pair()
    inner = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    models, optimizer = apply_recipe(models, inner, "O2")
    x, y = batch_of(0)
    before = [weights_of(model) for model in models]
    optimizer.backward(sum(F.cross_entropy(model(x), y) for model in models))
    optimizer.step()
    assert not any(torch.equal(a, weights_of(model)) for a, model in zip(before, models, strict=True))


def test_each_loss_has_its_own_scale():
    models, optimizers = apply_recipe(together := pair(), [sgd(model) for model in together], "O2", num_losses=2)
    x, y = batch_of(0)
    for step in range(3):
        for loss_id, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            factor = float("inf") if loss_id == 1 and step == 1 else 1.0
            optimizer.backward(F.cross_entropy(model(x), y) * factor, loss_id=loss_id)
            optimizer.step()
            optimizer.zero_grad()
    assert optimizers[0].scales == optimizers[1].scales == (65536.0, 32768.0)
    assert optimizers[0].num_skips == 1


@pytest.mark.parametrize("recipe", ["O1", "O2", "amp-fp16"])
@pytest.mark.parametrize("arithmetic", ["auto", "native"])
def test_two_losses_of_one_model_give_the_gradients_of_their_sum(recipe: str, arithmetic: str):
    gradients = []
    for num_losses in (1, 2):
        model = small_net()
        model, optimizer = apply_recipe(model, sgd(model), recipe, num_losses=num_losses, arithmetic=arithmetic)
        x, y = batch_of(0)
        for loss_id in range(2):
            optimizer.backward(F.cross_entropy(model(x), y) * (loss_id + 1), loss_id=loss_id if num_losses == 2 else 0)
        optimizer.unscale_()
        gradients.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
        optimizer.step()
        assert optimizer.num_skips == 0
    assert torch.allclose(*gradients, rtol=1e-2, atol=1e-5)


def test_an_overflow_of_either_loss_skips_the_step_and_lowers_its_scale_only():
    model = small_net()
    model, optimizer = apply_recipe(model, sgd(model), "O2", num_losses=2)
    x, y = batch_of(0)
    before = weights_of(model)
    optimizer.backward(F.cross_entropy(model(x), y) * float("inf"), loss_id=0)
    optimizer.backward(F.cross_entropy(model(x), y), loss_id=1)
    optimizer.step()
    assert torch.equal(weights_of(model), before)
    assert optimizer.scales == (32768.0, 65536.0)


def test_the_scales_of_all_losses_are_in_the_checkpoint():
    model = small_net()
    _, optimizer = apply_recipe(model, sgd(model), "O2", num_losses=2)
    x, y = batch_of(0)
    optimizer.backward(F.cross_entropy(model(x), y) * float("inf"), loss_id=1)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    other = small_net()
    _, resumed = apply_recipe(other, sgd(other), "O2", num_losses=2)
    resumed.load_state_dict(saved)
    assert resumed.scales == (65536.0, 32768.0)
    with resumed.repeating(resumed.remember()):
        resumed.backward(F.cross_entropy(other(x), y) * float("inf"), loss_id=0)
        resumed.step()
        assert resumed.scales == (32768.0, 32768.0)
    assert resumed.scales == (65536.0, 32768.0)


def test_an_override_names_the_model_by_its_place():
    models = pair()
    (_, second), _ = apply_recipe(models, [sgd(model) for model in models], "half", overrides={"1.9": "fp32"})
    x, _ = batch_of(0)
    second(x)
    assert not torch.equal(second[9].weight, second[9].weight.half().float())
    assert torch.equal(models[0][9].weight, models[0][9].weight.half().float())


def test_what_cannot_be_is_an_error():
    models = pair()
    optimizers = [sgd(model) for model in models]
    with pytest.raises(RecipeError, match="not to a str"):
        apply_recipe([models[0], "model"], optimizers, "O2")
    with pytest.raises(RecipeError, match="all of model 1 in fp32"):
        apply_recipe(models, optimizers, "O2", overrides={"1": "fp32"})
    with pytest.raises(RecipeError, match="num_losses = 0"):
        apply_recipe(models[0], optimizers[0], "O2", num_losses=0)
    _, optimizer = apply_recipe(models[0], optimizers[0], "O2", num_losses=2)
    with pytest.raises(RecipeError, match=r"no loss 2\.[\s\S]*num_losses=3"):
        optimizer.backward(torch.ones(()), loss_id=2)
