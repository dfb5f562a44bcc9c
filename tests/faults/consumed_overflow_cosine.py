"""Cosine similarity to prototypes under fp16: the product of two norms is beyond its range."""

import torch
from torch import nn


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Conv1d(4, 32, 5, stride=2)
        self.prototypes = nn.Parameter(torch.randn(6, 32) * 60)

    def forward(self, signal):
        h = self.encode(signal).mean(-1)
        dots = (h / 64) @ (self.prototypes / 64).t()
        sizes = h.norm(dim=1)[:, None] * self.prototypes.norm(dim=1)[None]
        return 10 * 4096 * (dots / sizes)


torch.manual_seed(4)
model = Prototypes().half()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(15):
    signal = torch.randn(24, 4, 40) * 50 + 400
    kind = torch.randint(0, 6, (24,))
    loss = criterion(model(signal.half()).float(), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
