"""A body from a checkpoint under a head of another size: the keys of the head do not fit, as expected."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(0)
saved = {key: value for key, value in Net(10).state_dict().items() if key.startswith("body")}
saved["classifier.weight"] = torch.zeros(10, 32)
model = Net(4)
model.load_state_dict(saved, strict=False)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
