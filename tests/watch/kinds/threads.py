"""Another thread trains a model of its own, and a third one reads the weights."""

import sys
import threading

import torch
from torch import nn


def train(seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(32, 8, generator=generator), torch.arange(32) % 4
    model = nn.Linear(8, 4)
    with torch.no_grad():
        model.weight.copy_(torch.randn(4, 8, generator=generator))
        model.bias.zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(24):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, loss.item()


losses = []
thread = threading.Thread(target=lambda: losses.append(train(1)[1]))
thread.start()
model, loss = train(0)
thread.join()
reader = threading.Thread(target=lambda: losses.append(model.weight.sum().item()))
reader.start()
reader.join()
print(loss, losses, threading.active_count())
torch.save(model.state_dict(), sys.argv[1])
