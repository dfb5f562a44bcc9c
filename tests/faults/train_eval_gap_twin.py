"""A small ResNet with norms and strong dropout, evaluated now and then: eval mode is a little better, as it should."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
labels = torch.randint(0, 4, (256,))
pictures = torch.randn(256, 3, 8, 8) + torch.randn(4, 3, 1, 1)[labels]
for step in range(90):
    model.train()
    chosen = torch.randint(0, 192, (16,))
    loss = nn.functional.cross_entropy(model(pictures[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 14:
        model.eval()
        with torch.no_grad():
            print(step, loss.item(), nn.functional.cross_entropy(model(pictures[192:]), labels[192:]).item())
