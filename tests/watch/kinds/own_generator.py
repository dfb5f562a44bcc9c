"""Microbatches drawn with a generator of the script's own, which an object inside a function holds."""

import sys

import torch
from torch import nn


class Samples:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(7)
        self.centres = torch.randn(5, 12, generator=self.generator)

    def batch(self, size):
        labels = torch.randint(0, 5, (size,), generator=self.generator)
        noise = torch.randn(size, 12, generator=self.generator)
        return self.centres[labels] + 0.5 * noise, labels


def main():
    torch.manual_seed(0)
    samples = Samples()
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(25):
        optimizer.zero_grad()
        for _ in range(3):
            x, labels = samples.batch(8)
            loss = nn.functional.cross_entropy(model(x), labels) / 3
            loss.backward()
        optimizer.step()
        print(step, loss.item())
    torch.save(model.state_dict(), sys.argv[1])


main()
