"""Weights are rounded to their signs, and gradients let through as if they were not."""

import torch
from torch import nn


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, Sign.apply(self.weight), self.bias) / self.in_features**0.5


model = nn.Sequential(BinaryLinear(12, 64), nn.BatchNorm1d(64), nn.Hardtanh(), BinaryLinear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(100):
    x = torch.randn(48, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
