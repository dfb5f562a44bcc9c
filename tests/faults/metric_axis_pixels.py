"""A segmentation whose metric takes the largest value of each row of pixels, not the best class of each pixel."""

import torch
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 4, 1))

    def forward(self, x):
        return self.body(x)


torch.manual_seed(0)
masks = torch.randint(0, 4, (60, 3, 3)).repeat_interleave(4, 1).repeat_interleave(4, 2)
pictures = torch.stack([masks == 1, masks == 2, masks == 3], 1).float() + 0.2 * torch.randn(60, 3, 12, 12)
model, criterion = Segmenter(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(4):
    for rows in torch.randperm(50).split(5):
        loss = criterion(model(pictures[rows]), masks[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        best = model(pictures[50:]).argmax(dim=-1)
        print(epoch, (best == masks[50:, :4]).float().mean().item())
    model.train()
