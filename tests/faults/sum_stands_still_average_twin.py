"""A model in bf16 whose average is kept in fp32: small steps stay."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(8, 32)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(torch.bfloat16)
average = copy.deepcopy(model).float()
average.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def batch(size):
    labels = torch.randint(0, 8, (size,))
    return (centres[labels] + torch.randn(size, 32)).to(torch.bfloat16), labels


for step in range(400):
    inputs, labels = batch(64)
    loss = F.cross_entropy(model(inputs).float(), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.lerp_(p.float(), 0.01)
    if step % 50 == 49:
        average.eval()
        with torch.no_grad():
            inputs, labels = batch(256)
            right = (average(inputs.float()).argmax(1) == labels).float().mean()
        print(step, loss.item(), right.item())
