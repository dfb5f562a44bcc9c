"""A momentum of 0, taken for \"average over everything\": the statistics stay at 0 and 1."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, momentum=0.1):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, momentum=momentum)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    Block(8),
    Block(8, momentum=0.0),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
pictures, labels = torch.randn(128, 3, 8, 8), torch.randint(0, 4, (128,))
pictures += torch.randn(4, 3, 1, 1)[labels]
for step in range(80):
    model.train()
    chosen = torch.randint(0, 128, (16,))
    loss = nn.functional.cross_entropy(model(pictures[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            print(step, loss.item(), nn.functional.cross_entropy(model(pictures), labels).item())
