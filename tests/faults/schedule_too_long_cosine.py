"""A cosine over all batches that is stepped once per epoch, so that the rate never comes down."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, epochs):
        torch.manual_seed(1)
        images = torch.randn(480, 1, 8, 8)
        labels = (images.mean((1, 2, 3)) > 0).long()
        self.epochs = epochs
        self.loader = DataLoader(TensorDataset(images, labels), batch_size=24, shuffle=True)
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs * len(self.loader))

    def fit(self):
        for epoch in range(self.epochs):
            for image, label in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.net(image), label)
                loss.backward()
                self.optimizer.step()

            self.scheduler.step()
            print(epoch, loss.item())


Trainer(8).fit()
