"""Trains the digits in fp16, `O2`. One layer of the model computes numbers that fp16 does not have."""

import sys

import torch
from torch import nn

import roundoff
from roundoff.train import load_digits


class Energy(nn.Module):
    """Divides by the norm, the long way: by a sum of squares of numbers that need not be small."""

    def forward(self, x):
        return 400 * x / (1e-3 + (40 * x).square().sum(dim=1, keepdim=True)).sqrt()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU())
        self.norm = nn.LayerNorm(128)
        self.energy = Energy()
        self.body = nn.Sequential(nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(self.energy(self.norm(self.stem(x)))))


images, labels = load_digits()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recipe = sys.argv[1] if len(sys.argv) > 1 else "O2"
model, optimizer = roundoff.apply_recipe(model, optimizer, recipe)
for _ in range(100):
    chosen = torch.randint(0, 1500, (64,))
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
print(f"loss {loss.item():.3f}  accuracy {right.item():.3f}")
