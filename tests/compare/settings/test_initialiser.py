"""Start values as torch draws them, and the names they get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from roundoff.compare.settings.structure_settings import initialiser_of, spreads_agree


def named(x: Tensor) -> str:
    return initialiser_of(
        tuple(x.shape),
        mean=float(x.double().mean()),
        std=float(x.double().std(correction=0)),
        absmax=float(x.abs().max()),
    )


DRAWN: dict[str, Callable[[], Tensor]] = {
    "kaiming uniform": lambda: nn.Linear(48, 96).weight,
    "xavier uniform": lambda: nn.init.xavier_uniform_(torch.empty(96, 48)),
    "kaiming uniform for ReLU": lambda: nn.init.kaiming_uniform_(torch.empty(96, 48)),
    "kaiming normal": lambda: nn.init.kaiming_normal_(torch.empty(96, 48)),
    "xavier normal": lambda: nn.init.xavier_normal_(torch.empty(96, 48)),
    "normal 0.02": lambda: nn.init.normal_(torch.empty(96, 48), std=0.02),
    "normal 1": lambda: nn.Embedding(96, 48).weight,
    "normal 0.005": lambda: nn.init.normal_(torch.empty(96, 48), std=0.005),
    "uniform +-0.3": lambda: nn.init.uniform_(torch.empty(300), -0.3, 0.3),
    "zeros": lambda: torch.zeros(8),
    "ones": lambda: torch.ones(8),
    "constant 0.5": lambda: torch.full((8,), 0.5),
}


@pytest.mark.parametrize(("name", "draw"), DRAWN.items(), ids=DRAWN.keys())
def test_an_initialiser_is_known_by_its_numbers(name: str, draw: Callable[[], Tensor]) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        assert named(draw().detach()) == name


def test_the_weights_of_a_convolution_are_known_by_their_fans() -> None:
    torch.manual_seed(0)
    assert named(nn.Conv2d(16, 32, 3).weight.detach()) == "kaiming uniform"


def test_few_numbers_are_only_described() -> None:
    assert initialiser_of((4,), mean=0.1, std=0.2, absmax=0.3) == "mean 0.1, spread 0.2"
    assert initialiser_of((4,), mean=None, std=None, absmax=None) == "unknown"


def test_numbers_that_are_not_around_zero_are_described() -> None:
    assert initialiser_of((1000,), mean=0.5, std=0.1, absmax=0.9) == "numbers around 0.5 with spread 0.1"


def test_spreads_differ_by_more_than_chance() -> None:
    assert spreads_agree(1000, 0.1, 0.11)
    assert not spreads_agree(1000, 0.1, 0.2)
    assert spreads_agree(1, 0.0, 0.0)
