"""A planted jump of the loss is found at its step; healthy losses, however noisy, are silent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.diagnose import SpikeDetector
from roundoff.train import load_digits

NUM_STEPS = 500


def jumps(losses: list[float]) -> list[int]:
    detector = SpikeDetector()
    return [step for step, loss in enumerate(losses) if detector.see(loss) is not None]


def falling(noise: Callable[[random.Random, int], float], seed: int) -> list[float]:
    """A loss that falls at one of many speeds from and to one of many levels, with noise as a factor."""
    generator = random.Random(seed)
    start, floor = generator.choice([0.7, 2.3, 10.8]), generator.choice([0.0, 0.05, 0.5])
    speed = generator.choice([20, 60, 200, 1000])
    return [(floor + (start - floor) * math.exp(-step / speed)) * noise(generator, step) for step in range(NUM_STEPS)]


NOISES: dict[str, Callable[[random.Random, int], float]] = {
    "quiet": lambda generator, step: 1 + 0.05 * generator.gauss(0, 1),
    "noisy": lambda generator, step: 1 + 0.3 * abs(generator.gauss(0, 1)),
    "batches of one": lambda generator, step: generator.expovariate(1),
    "over magnitudes": lambda generator, step: math.exp(0.7 * generator.gauss(0, 1)),
    "waves": lambda generator, step: 1 + 0.3 * math.sin(step / 15) + 0.1 * generator.gauss(0, 1),
    "small last batch": lambda generator, step: (1.0 if step % 50 else 1.5) * (1 + 0.1 * generator.gauss(0, 1)),
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_healthy_losses_are_silent(noise: Callable[[random.Random, int], float]) -> None:
    assert [seed for seed in range(60) if jumps(falling(noise, seed))] == []


def test_losses_around_zero_that_wander_are_silent() -> None:
    generator = random.Random(0)
    assert jumps([0.02 * min(step, 200) + 0.5 * generator.gauss(0, 1) for step in range(NUM_STEPS)]) == []


def test_losses_below_zero_must_jump_as_far_as_those_above() -> None:
    level = [-2.0 + 0.01 * (step % 7) for step in range(60)]
    assert jumps([*level, -0.6]) == []
    assert jumps([*level, 0.3]) == [60]


def test_losses_that_rise_slowly_do_not_jump() -> None:
    level = [-2.0 + 0.01 * (step % 7) for step in range(40)]
    assert jumps([*level, *(-2.0 + 0.2 * step for step in range(15))]) == []


@pytest.mark.parametrize("name", ["quiet", "noisy", "waves"])
def test_a_planted_jump_is_found_at_its_step(name: str) -> None:
    for seed in range(30):
        losses = falling(NOISES[name], seed)
        losses[300] = 10 * losses[299] + 2
        assert jumps(losses)[:1] == [300]


def test_a_new_level_is_reported_once_and_not_for_ever() -> None:
    losses = [1.0 + 0.01 * (step % 7) for step in range(100)] + [5.0 + 0.01 * (step % 7) for step in range(100)]
    assert 1 <= len(jumps(losses)) <= 10
    assert jumps(losses)[0] == 100


def test_losses_that_are_not_finite_are_no_spikes() -> None:
    assert jumps([1.0] * 50 + [math.nan, math.inf] + [1.0] * 5) == []


@pytest.fixture(scope="module", params=["sgd", "adam", "batches of two"])
def real_losses(request: pytest.FixtureRequest) -> list[float]:
    """The losses of real trainings on digits, one of them noisy."""
    torch.manual_seed(0)
    images, labels = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if request.param == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(NUM_STEPS):
        chosen = torch.randint(0, len(labels), (2 if request.param == "batches of two" else 32,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_real_healthy_trainings_are_silent(real_losses: list[float]) -> None:
    assert jumps(real_losses) == []
