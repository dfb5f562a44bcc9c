"""Patches, a class token, a warm-up and a cosine; weight decay for matrices alone; an average of the weights."""

import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 24, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 10, 24) * 0.02)
        layer = nn.TransformerEncoderLayer(24, 2, 48, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 4)
        nn.init.zeros_(self.head.weight)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.body(x)[:, 0])


model = Vision()
wide = [p for p in model.parameters() if p.dim() > 1]
narrow = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / 80))
)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
for step in range(80):
    labels = torch.randint(0, 4, (16,))
    images = torch.randn(16, 1, 12, 12)
    images[torch.arange(16), 0, labels * 2] += 1.5
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    average.update_parameters(model)
