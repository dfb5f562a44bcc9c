"""Layers that are unfrozen one after the other, in a class, while only the first of them is added as a group."""

import torch
from torch import nn


class FineTuning:
    def __init__(self):
        self.layers = nn.ModuleList([nn.Linear(10, 10) for _ in range(3)])
        self.model = nn.Sequential(*(part for layer in self.layers for part in (layer, nn.ReLU())), nn.Linear(10, 2))
        self.layers.requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model[-1].parameters(), lr=0.1)

    def unfreeze(self, number):
        self.layers[number].requires_grad_(True)
        if number == 2:
            self.optimizer.add_param_group({"params": self.layers[number].parameters()})

    def train(self):
        for step in range(120):
            if step in (30, 60):
                self.unfreeze(2 if step == 30 else 1)
            x = torch.randn(32, 10)
            loss = nn.functional.cross_entropy(self.model(x), (x[:, 0] > x[:, 1]).long())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


torch.manual_seed(0)
FineTuning().train()
