"""Training on the digits with compressed activations reaches what fp32 reaches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from roundoff.precision.activations import ActivationSettings, compress_activations
from roundoff.train.digits import train_test


def trained_accuracy(bits: int, *, seed: int, epochs: int = 4) -> float:
    train, test = train_test(seed=seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(train, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(seed))
    with compress_activations(model, ActivationSettings(bits=bits)):
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    images, labels = test[:]
    with torch.no_grad():
        return float((model.eval()(images).argmax(1) == labels).float().mean())


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return [trained_accuracy(32, seed=seed) for seed in range(2)]


@pytest.mark.parametrize(("bits", "at_most_lost"), [(4, 0.015), (2, 0.03)])
def test_reaches_what_fp32_reaches(plain, bits, at_most_lost):
    compressed = [trained_accuracy(bits, seed=seed) for seed in range(2)]
    assert min(plain) > 0.94
    assert sum(plain) / 2 - sum(compressed) / 2 <= at_most_lost
