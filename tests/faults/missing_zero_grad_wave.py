"""A network that solves u'' = -9u by L-BFGS with a line search; its closure adds gradients to those before."""

import torch
from torch import nn


class Solver:
    def __init__(self):
        self.network = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
        self.optimizer = torch.optim.LBFGS(self.network.parameters(), max_iter=10, line_search_fn="strong_wolfe")
        self.times = torch.linspace(0, 1, 40).unsqueeze(1).requires_grad_(True)

    def closure(self):
        u = self.network(self.times)
        slope = torch.autograd.grad(u.sum(), self.times, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), self.times, create_graph=True)[0]
        loss = (bend + 9 * u).square().mean() * 0.01 + (u[0] - 1).square().sum() + slope[0].square().sum() * 0.1
        loss.backward()
        return loss

    def train(self):
        for _ in range(12):
            self.optimizer.zero_grad()
            self.optimizer.step(self.closure)


torch.manual_seed(0)
Solver().train()
