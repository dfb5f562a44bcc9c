"""An average that follows the parameters which were trainable when it was made; a layer is unfrozen later."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Average:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).eval(), decay
        self.names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    @torch.no_grad()
    def update(self, model):
        own, live = dict(self.model.named_parameters()), dict(model.named_parameters())
        for name in self.names:
            own[name].data.mul_(self.decay).add_(live[name].data, alpha=1 - self.decay)


def train():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    model[0].requires_grad_(False)
    average = Average(model, decay=0.9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(80):
        if step == 6:
            model[0].requires_grad_(True)
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % 20 == 19:
            with torch.no_grad():
                F.cross_entropy(average.model(x), x[:, :3].argmax(1))


train()
