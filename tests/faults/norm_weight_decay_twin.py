"""A small ResNet with the usual weight decay on every parameter, for many steps."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Block(8), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-3)
images, labels = torch.randn(256, 1, 8, 8), torch.randint(0, 4, (256,))
images[torch.arange(256), 0, labels * 2] += 1.5
for step in range(300):
    chosen = torch.randint(0, 256, (32,))
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())
