"""Averages of the weights: torch's AveragedModel, and one by hand that is a deep copy."""

import copy
import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
by_hand = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    if step > 5:
        with torch.no_grad():
            teacher = by_hand(x)
        loss = loss + 0.1 * nn.functional.mse_loss(model(x), teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    averaged.update_parameters(model)
    with torch.no_grad():
        for mean, parameter in zip(by_hand.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.1)
    if step % 10 == 0:
        print(step, loss.item())
torch.save({"averaged": averaged.state_dict(), "by_hand": by_hand.state_dict()}, sys.argv[1])
