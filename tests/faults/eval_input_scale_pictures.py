"""Pictures of bytes that are normalized for training, and not for the test."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
patterns = torch.rand(4, 3, 8, 8) * 255


def pictures(num, transform):
    labels = torch.randint(0, 4, (num,))
    return TensorDataset(transform((patterns[labels] + 30 * torch.randn(num, 3, 8, 8)).clamp(0, 255)), labels)


train = DataLoader(pictures(400, lambda x: (x / 255 - 0.5) / 0.25), batch_size=40, shuffle=True)
test = DataLoader(pictures(200, lambda x: x), batch_size=100)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    model.train()
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum(int((model(x).argmax(1) == y).sum()) for x, y in test) / 200)
