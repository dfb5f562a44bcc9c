"""A network that is given both pictures of a pair at once; there are fewer pictures than pairs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Compare(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, one, other):
        return self.head((self.body(one) - self.body(other)).abs()).squeeze(1)


pictures = torch.randn(40, 16)
first, second = torch.randint(0, 40, (2, 480))
nearer = (pictures[first, 0] > pictures[second, 0]).float()
loader = DataLoader(TensorDataset(pictures[first], pictures[second], nearer), batch_size=24, shuffle=True)
model = Compare()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    for one, other, label in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(one, other), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
