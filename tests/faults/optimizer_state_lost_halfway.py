"""A training that is saved and resumed half-way, with its weights but without the state of Adam."""

import io

import torch
from torch import nn


def built():
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, torch.optim.Adam(model.parameters(), lr=3e-3)


torch.manual_seed(0)
model, optimizer = built()
for step in range(60):
    if step == 30:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        file.seek(0)
        checkpoint = torch.load(file)
        model, optimizer = built()
        model.load_state_dict(checkpoint["model"])
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
