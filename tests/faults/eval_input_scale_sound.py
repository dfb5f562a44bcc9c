"""Sound that is trained on between -1 and 1, and evaluated as 16-bit numbers."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(1, 8, 9, stride=4), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
model.append(nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def sounds(num):
    pitch = torch.randint(0, 2, (num,))
    times = torch.arange(200) * (0.2 + 0.3 * pitch[:, None])
    return (times + 6 * torch.rand(num, 1)).sin().unsqueeze(1) * 0.5 + 0.1 * torch.randn(num, 1, 200), pitch


for step in range(100):
    x, pitch = sounds(32)
    loss = nn.functional.cross_entropy(model.train()(x), pitch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 24:
        x, pitch = sounds(100)
        with torch.no_grad():
            print((model.eval()(x * 32768).argmax(1) == pitch).float().mean())
