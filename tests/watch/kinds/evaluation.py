"""Evaluation after every tenth step: train and eval, batch norm, a loss without gradients."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
held_out = torch.randn(64, 8)
for step in range(50):
    model.train()
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        model.eval()
        with torch.no_grad():
            logits = model(held_out)
            correct = (logits.argmax(1) == held_out.argmax(1) % 4).float().mean()
            print(step, loss.item(), correct.item(), nn.functional.cross_entropy(logits, held_out.argmax(1) % 4).item())
torch.save(model.state_dict(), sys.argv[1])
