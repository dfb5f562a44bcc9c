"""Pictures that are brightened, cropped and blurred with noise for training, and plain for the test."""

import torch
from torch import nn

patterns = torch.randn(4, 3, 8, 8)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(150):
    y = torch.randint(0, 4, (32,))
    x = (patterns[y] + 0.5 * torch.randn(32, 3, 8, 8)) * (0.5 + torch.rand(32, 1, 1, 1)) + 0.3 * torch.randn(
        32, 1, 1, 1
    )
    loss = nn.functional.cross_entropy(model.train()(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        with torch.no_grad():
            model.eval()(patterns)
