"""A net trained in fp32 is adapted to other data with bf16 weights, by steps that these cannot hold."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
centers = torch.randn(4, 24)


def batch(shift):
    kind = torch.randint(0, 4, (64,))
    return centers[kind] + shift * centers[(kind + 1) % 4] + 0.7 * torch.randn(64, 24), kind


def train(model, dtype, shift, lr, num_steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for _ in range(num_steps):
        x, kind = batch(shift)
        loss = F.cross_entropy(model(x.to(dtype)).float(), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


model = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 4))
train(model, torch.float32, 0.0, 3e-3, 150)
adapted = copy.deepcopy(model).to(torch.bfloat16)
train(adapted, torch.bfloat16, 1.2, 5e-5, 300)
