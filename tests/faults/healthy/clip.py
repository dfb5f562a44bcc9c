"""Images and captions of a batch are matched: every sample is told from all others, inside the model."""

import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16))
        self.words = nn.EmbeddingBag(40, 16)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, captions):
        left = nn.functional.normalize(self.image(images), dim=-1)
        right = nn.functional.normalize(self.words(captions), dim=-1)
        return self.scale.exp() * left @ right.T


model = Pair()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(120):
    captions = torch.randint(0, 40, (32, 4))
    images = torch.randn(32, 1, 8, 8) * 0.2 + captions.float().div(20).repeat(1, 16).view(32, 1, 8, 8)
    logits = model(images, captions)
    labels = torch.arange(32)
    loss = (nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
