"""A choice among experts by a softmax with noise whose temperature falls."""

import torch
from torch import nn


class Chooser(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.parts = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))
        self.temperature = 2.0

    def forward(self, x):
        choice = nn.functional.gumbel_softmax(self.gate(x), tau=self.temperature, hard=True)
        return sum(choice[:, i : i + 1] * part(x) for i, part in enumerate(self.parts))


model = Chooser()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(150):
    model.temperature = max(0.5, 2.0 * 0.99**step)
    x = torch.randn(48, 8)
    labels = torch.where(x[:, 7] > 0, x[:, :3].argmax(1), x[:, 3:6].argmax(1))
    loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
