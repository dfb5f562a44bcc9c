"""Pictures of bytes are brightened and compared with the picture before while they are still bytes."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(30):
    labels = torch.randint(0, 3, (16,))
    pictures = torch.randint(120, 220, (16, 1, 8, 8), dtype=torch.uint8)
    pictures[torch.arange(16), 0, labels * 2] = 240
    x = (pictures + 40).float() / 255
    loss = nn.functional.cross_entropy(net(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
