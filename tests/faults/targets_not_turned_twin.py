"""Pictures are flipped together with their masks."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, count):
        self.masks = torch.zeros(count, 1, 16, 16)
        for mask in self.masks:
            row, column = torch.randint(0, 11, (2,)).tolist()
            mask[:, row : row + 5, column : column + 5] = 1
        self.pictures = self.masks + 0.3 * torch.randn(count, 1, 16, 16)

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, index):
        picture, mask = self.pictures[index], self.masks[index]
        if random.random() < 0.5:
            picture, mask = picture.flip(2), mask.flip(2)
        return picture, mask


torch.manual_seed(0)
random.seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
optimizer = torch.optim.Adam(net.parameters(), 5e-3)
data = Squares(200)
for _ in range(4):
    for x, mask in DataLoader(data, 10, shuffle=True):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
