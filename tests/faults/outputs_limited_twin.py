"""The same with a scale that is learned; and a tanh whose targets are within its reach."""

import torch
from torch import nn
from torch.nn import functional as F


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.text = nn.Sequential(nn.Embedding(50, 32), nn.Flatten(), nn.Linear(128, 32))
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, pictures, texts):
        a, b = F.normalize(self.picture(pictures), dim=-1), F.normalize(self.text(texts), dim=-1)
        logits = self.scale.exp() * a @ b.t()
        which = torch.arange(len(pictures))
        return (F.cross_entropy(logits, which) + F.cross_entropy(logits.t(), which)) / 2


torch.manual_seed(0)
texts = torch.randint(0, 50, (800, 4))
pictures = torch.randn(50, 8)[texts].flatten(1) + 0.1 * torch.randn(800, 32)
model = Pairs()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(80):
    rows = torch.randint(0, 800, (32,))
    loss = model(pictures[rows], texts[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

control = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
optimizer = torch.optim.Adam(control.parameters(), 1e-2)
for _ in range(60):
    state = torch.randn(32, 6)
    loss = F.mse_loss(control(state), torch.tanh(state[:, :2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
