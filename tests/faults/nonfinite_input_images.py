"""An image is divided by its own contrast, which is 0 for one that is all black."""

import torch
from torch import nn


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.pixels = torch.rand(192, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        self.pixels[77] = 0.0

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        image = self.pixels[index]
        return (image - image.mean()) / image.std(), (image.mean() > 0.5).long()


torch.manual_seed(11)
network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
for images, labels in torch.utils.data.DataLoader(Images(), batch_size=12):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()
