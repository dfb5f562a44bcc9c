"""Model and optimizer are saved, loaded into new ones, and trained on, as after an interruption."""

import copy
import io
import sys

import torch
from torch import nn


def make():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


torch.manual_seed(0)
model, optimizer = make()
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
best = None
for step in range(36):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 12 == 5:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        best = copy.deepcopy(model.state_dict())
    if step % 12 == 11:
        file.seek(0)
        kept = torch.load(file)
        model, optimizer = make()
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        print(step, kept["step"], loss.item())
model.load_state_dict(best)
torch.save(model.state_dict(), sys.argv[1])
