"""An average of a model whose body is frozen: its body does not move, because the model's does not."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
model[0].requires_grad_(False)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
for _ in range(80):
    x = torch.randn(32, 8)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
with torch.no_grad():
    print(F.cross_entropy(average.eval()(x), x[:, :3].argmax(1)).item())
