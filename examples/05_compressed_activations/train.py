"""Trains a small convolutional net with activations in as many bits as the command line says; 32 means as they are."""

import sys

import torch
from torch import nn

from roundoff.precision.activations import ActivationSettings, compress_activations
from roundoff.train import load_digits

bits = int(sys.argv[1])
torch.manual_seed(0)
images, labels = load_digits()
order = torch.randperm(len(labels))
images, labels = images[order], labels[order]
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 16, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
compressed = compress_activations(model, ActivationSettings(bits=bits)) if bits < 32 else None
for _ in range(60):
    chosen = torch.randint(0, 1500, (128,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
if compressed is not None:
    print(compressed.report())
    compressed.remove()
model.eval()
with torch.no_grad():
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
print(f"{bits} bits  loss {loss.item():.3f}  accuracy {right.item():.3f}")
