"""The mean absolute error of (N, 1) predictions against (N,) targets; the loss has both shapes right."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.x = torch.randn(400, 5)
        self.y = self.x @ torch.randn(5)
        self.model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)

    def train(self, steps):
        self.model.train()
        for _ in range(steps):
            rows = torch.randint(0, 300, (30,))
            loss = nn.functional.mse_loss(self.model(self.x[rows]).squeeze(-1), self.y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def error(self):
        self.model.eval()
        return (self.model(self.x[300:]) - self.y[300:]).abs().mean().item()


torch.manual_seed(0)
trainer = Trainer()
for _ in range(4):
    trainer.train(20)
    print(trainer.error())
