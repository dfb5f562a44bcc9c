"""Bytes and small integers that stay in their range, or wrap on purpose in a hash, or in a branch that is not taken."""

import torch
from torch import nn


def bucket(ids):
    mixed = ids.int() * 1_103_515_245 + 12_345
    return ((mixed >> 16) & 63).long()


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
words = nn.Embedding(64, 3)
optimizer = torch.optim.Adam([*net.parameters(), *words.parameters()], lr=2e-3)
for step in range(60):
    labels = torch.randint(0, 3, (16,))
    pictures = torch.randint(0, 200, (16, 1, 8, 8), dtype=torch.uint8)
    pictures[torch.arange(16), 0, labels * 2] = 240
    other = pictures.flip(0)
    difference = torch.where(pictures > other, pictures - other, other - pictures)
    x = ((255 - pictures).float() + difference.float() / 10) / 255
    scores = net(x) + words(bucket(torch.randint(0, 1000, (16,))))
    loss = nn.functional.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
