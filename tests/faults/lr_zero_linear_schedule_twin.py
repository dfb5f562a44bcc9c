"""A linear schedule of the length of the training."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.randn(512, 1, 8, 8)
labels = (images.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
epochs = 12
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=epochs * len(loader))
for epoch in range(epochs):
    for x, y in loader:
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        schedule.step()
    print(epoch, loss.item())
