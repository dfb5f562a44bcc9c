"""Sound of 16 bits that is mixed after it became floating point, and stored as bytes by its logarithm."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(100):
    loud = torch.randint(0, 2, (32,))
    speech = (torch.randn(32, 64) * (500 + 6000 * loud[:, None])).clamp(-32768, 32767).to(torch.int16)
    noise = torch.randint(-20000, 20000, (32, 64), dtype=torch.int16)
    mixed = speech.float() + 0.05 * noise.float()
    stored = (mixed.abs().add(1).log() * 20).clamp(0, 255).to(torch.uint8)
    loss = nn.functional.cross_entropy(net(stored.float() / 255), loud)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
