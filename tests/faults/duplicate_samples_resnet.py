"""A sampler that rounds its indices down to even ones: half of the pictures come twice, the others never."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Shuffled(Sampler):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter((torch.randperm(self.length) // 2 * 2).tolist())

    def __len__(self):
        return self.length


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


torch.manual_seed(0)
pictures = torch.randn(256, 3, 8, 8)
labels = (pictures.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(pictures, labels), batch_size=16, sampler=Shuffled(256))
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
