"""The channels are permuted; what is reshaped has other dimensions."""

import torch
from torch import nn

torch.manual_seed(0)
y = torch.randint(0, 3, (400,))
pictures = 0.3 * torch.rand(400, 12, 12, 3)
for picture, color in zip(pictures, y, strict=True):
    row, column = torch.randint(0, 8, (2,)).tolist()
    picture[row : row + 4, column : column + 4, color] += 0.5
x = pictures.permute(0, 3, 1, 2).reshape(400, 3, 144).view(-1, 3, 12, 12)
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(net.parameters(), 5e-3)
for _ in range(60):
    rows = torch.randint(0, 400, (40,))
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
