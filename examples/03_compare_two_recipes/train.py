"""Trains on the digits with the recipe that the command line names."""

import sys

import torch
from torch import nn

import roundoff
from roundoff.train import load_digits

torch.manual_seed(0)
images, labels = load_digits()
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = roundoff.apply_recipe(model, optimizer, sys.argv[1])
for _ in range(150):
    chosen = torch.randint(0, 1500, (64,))
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
print(f"loss {loss.item():.3f}  accuracy {right.item():.3f}")
