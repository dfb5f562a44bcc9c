"""The loss without the scale that a scaler, or an optimizer with a scale of its own, gave it."""

from dataclasses import dataclass, field

import pytest
import torch

from roundoff.record.loop.loss_scale import LossScale


@dataclass
class Scaled:
    """An optimizer with a loss scale of its own."""

    scale: float
    gradient_scale: float = 1.0
    may_skip: bool = False
    last_overflow: str | None = None
    stand_ins: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def announce(self, loss: torch.Tensor) -> None:
        pass


@pytest.fixture
def loss() -> torch.Tensor:
    return torch.tensor(0.5, requires_grad=True) * 3


def test_an_unscaled_loss_is_returned_as_it_is(loss: torch.Tensor):
    scale = LossScale()
    assert scale.without_scale(loss) is loss
    assert scale.value is None
    assert not scale.is_scaled([loss])


def test_finds_the_loss_that_a_scaler_scaled_until_it_is_forgotten(loss: torch.Tensor):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scale, scaled = LossScale(), scaler.scale(loss)
    scale.see_scaler(scaler)
    scale.see_scaled([scaled], [loss])
    assert scale.without_scale(scaled) is loss
    assert scale.is_scaled([scaled])
    assert float(scale.value) == 8.0
    scale.new_step()
    assert scale.without_scale(scaled) is scaled
    assert scale.value is None


def test_keeps_the_scale_as_it_was_when_the_scaler_changes_it(loss: torch.Tensor):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(loss)
    scale = LossScale()
    scale.see_scaler(scaler)
    scaler.update(2.0)
    assert float(scale.value) == 8.0


def test_an_announced_loss_counts_for_one_backward(loss: torch.Tensor):
    scale, scaled = LossScale(), loss * 4
    scale.see_announced(Scaled(scale=4.0), loss)
    assert float(scale.value) == 4.0
    assert scale.without_scale(scaled) is loss
    assert scale.without_scale(scaled) is scaled


def test_an_optimizer_that_multiplies_with_one_has_no_scale(loss: torch.Tensor):
    scale = LossScale()
    scale.see_announced(Scaled(scale=1.0), loss)
    assert scale.value is None
