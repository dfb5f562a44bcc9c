"""Every pixel gets a class; a border is ignored, and one class is rare and weighs more."""

import torch
from torch import nn


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.low = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        high = self.down(x)
        return self.out(torch.cat([high, self.up(self.low(high))], 1))


model = Unet()
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.0, 4.0]), ignore_index=255)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    images = torch.randn(8, 1, 12, 12)
    smooth = nn.functional.avg_pool2d(images, 3, 1, 1)[:, 0]
    labels = torch.bucketize(smooth, torch.tensor([0.2, 0.7]))
    labels[:, 0] = labels[:, -1] = 255
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
