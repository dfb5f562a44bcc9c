"""A trainer whose condition around the step is true for the first 20 batches only."""

import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.warm_up = 20

    def fit(self):
        for step in range(150):
            x = torch.randn(16, 8)
            F.cross_entropy(self.model(x), x[:, :3].argmax(1)).backward()
            if step < self.warm_up:
                self.optimizer.step()
                self.optimizer.zero_grad()


torch.manual_seed(0)
Trainer().fit()
