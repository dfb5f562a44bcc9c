"""The switch `adaptive`: freezes scales that adapt to the data."""

import pytest
import torch
from torch import nn

from roundoff.errors import SwitchError
from roundoff.precision import apply_recipe
from roundoff.switches import switching


def overflowing_steps(num_steps: int) -> float:
    """Train with losses that overflow in fp16, and return the loss scale at the end."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.0), "O2")
    for _ in range(num_steps):
        optimizer.backward(model(torch.ones(2, 4)).sum() * 1e4)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer.scale


def grad_scaler_after(num_steps: int) -> float:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    for step in range(num_steps):
        scaler.scale(model(torch.ones(2, 4)).sum() * (float("inf") if step == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


def test_the_loss_scale_of_a_recipe_stays_where_it_was_after_some_steps():
    assert overflowing_steps(4) == 2.0**12
    with switching({"adaptive": "0"}):
        assert overflowing_steps(4) == 2.0**16
    with switching({"adaptive": "2"}):
        assert overflowing_steps(4) == 2.0**14
    assert overflowing_steps(4) == 2.0**12


def test_torchs_own_scaler_stays_too():
    plain = grad_scaler_after(5)
    assert plain == 2.0**17
    with switching({"adaptive": "0"}):
        assert grad_scaler_after(5) == 2.0**16
    with switching({"adaptive": "1"}):
        assert grad_scaler_after(5) == 2.0**15
    assert grad_scaler_after(5) == plain


def test_a_loss_scale_can_be_given():
    with switching({"adaptive": "0", "adaptive.loss_scale": "1024"}):
        assert overflowing_steps(3) == 1024.0
        assert grad_scaler_after(3) == 1024.0


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"adaptive": "on"}, "Invalid value 'on' of the switch adaptive."),
        ({"adaptive": "-1"}, "Invalid value '-1' of the switch adaptive."),
        ({"adaptive": "1.5"}, "Invalid value '1.5' of the switch adaptive."),
        ({"adaptive": "0", "adaptive.loss_scale": "0"}, "Invalid value '0' of the switch adaptive.loss_scale."),
        ({"adaptive": "0", "adaptive.loss_scale": "much"}, "Invalid value 'much' of the switch adaptive.loss_scale."),
        ({"adaptive": "0", "adaptive.seed": "1"}, "The switch 'adaptive' has no option 'adaptive.seed'."),
    ],
)
def test_what_cannot_be_is_said(switches: dict[str, str], message: str):
    with pytest.raises(SwitchError) as caught, switching(switches):
        pass
    assert str(caught.value).splitlines()[0] == message
