"""What people bring along from torch.amp, apex and `model.half()`: scaler states, checkpoints, and habits."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from roundoff.precision import LossScaler, recipe_named, scale_settings
from tests.precision.small_trainings import batch_of, prepared, train, weights_of


def used_grad_scaler() -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=3)
    weight = torch.zeros(2, requires_grad=True)
    inner = torch.optim.SGD([weight], lr=0.1)
    for value in (1.0, float("inf"), 1.0, 1.0):
        inner.zero_grad()
        scaler.scale((weight * value).sum()).backward()
        scaler.step(inner)
        scaler.update()
    return scaler


def test_goes_on_from_the_state_of_a_grad_scaler():
    theirs = used_grad_scaler()
    _, optimizer = prepared("amp-fp16")
    optimizer.load_scaler_state_dict(theirs.state_dict())
    assert optimizer.scale == theirs.get_scale() == 128.0
    ours = LossScaler(scale_settings("dynamic:torch"))
    ours.load_state_dict(theirs.state_dict())
    ours.update(overflow=None)
    assert ours.scale == 512.0  # the third clean step, times the growth factor
    ours.update(overflow="w")
    assert ours.scale == 128.0


def test_a_static_scale_keeps_its_value_and_settings():
    ours = LossScaler(scale_settings(64))
    ours.load_state_dict(used_grad_scaler().state_dict())
    assert ours.scale == 64.0


def test_a_disabled_grad_scaler_changes_nothing():
    ours = LossScaler(scale_settings("dynamic"))
    ours.load_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict())
    assert ours.scale == 65536.0


def test_goes_on_from_the_state_of_apex():
    _, optimizer = prepared("O2")
    optimizer.load_scaler_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 1999}})
    assert optimizer.scale == 1024.0
    train(_, optimizer, range(1))
    assert optimizer.scale == 2048.0


def test_unscaling_twice_divides_once():
    model, optimizer = prepared("O2", loss_scale=1024)
    x, y = batch_of(0)
    optimizer.backward(F.cross_entropy(model(x), y))
    optimizer.unscale_()
    before = [p.grad.clone() for p in model.parameters()]
    optimizer.unscale_()
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))
    optimizer.step()


def test_a_step_without_backward_is_no_step_of_the_loss_scale():
    model, optimizer = prepared("O2")
    before = weights_of(model)
    for _ in range(3):
        optimizer.step()
    assert torch.equal(weights_of(model), before)
    assert optimizer.state_dict()["roundoff"]["scaler"]["num_clean"] == 0
    assert optimizer.state_dict()["roundoff"]["scaler"]["step"] == 0
    train(model, optimizer, range(2))
    assert optimizer.state_dict()["roundoff"]["scaler"]["num_clean"] == 2


@pytest.mark.parametrize("arithmetic", ["native", "emulated"])
def test_half_by_hand_has_its_criterion_in_fp16(arithmetic: str):
    model, optimizer = prepared("half-by-hand", arithmetic=arithmetic)
    x, y = batch_of(0)
    loss = F.cross_entropy(model(x), y)
    assert loss.dtype is torch.float16
    optimizer.backward(loss)
    optimizer.step()
    by_hand = model(x).float()
    assert torch.isfinite(by_hand).all()


@pytest.mark.parametrize("arithmetic", ["native", "emulated"])
@pytest.mark.parametrize("name", ["half", "O3", "O2", "bf16"])
def test_a_state_dict_has_the_type_of_the_original_on_request(name: str, arithmetic: str):
    recipe = replace(recipe_named(name), saved="narrow")
    model, optimizer = prepared(recipe, arithmetic=arithmetic)
    train(model, optimizer, range(2))
    state = model.state_dict()
    narrow = torch.bfloat16 if name == "bf16" else torch.float16
    assert state["0.weight"].dtype is state["9.weight"].dtype is narrow
    norms = torch.float16 if name == "O3" else torch.float32
    assert state["1.weight"].dtype is state["1.running_var"].dtype is norms
    assert state["1.num_batches_tracked"].dtype is torch.int64
    resumed, _ = prepared(recipe, seed=1, arithmetic=arithmetic)
    resumed.load_state_dict(state)
    assert torch.equal(weights_of(resumed), weights_of(model))
