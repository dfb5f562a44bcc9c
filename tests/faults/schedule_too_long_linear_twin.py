"""A warm-up of a tenth of the steps."""

import torch
from torch import nn

torch.manual_seed(0)


def warm_up_and_decay(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, (total - step) / max(1, total - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


inputs = torch.randn(400, 8)
targets = inputs.sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
schedule = warm_up_and_decay(optimizer, warmup=20, total=200)
for epoch in range(20):
    order = torch.randperm(400)
    for part in order.split(40):
        loss = ((net(inputs[part]) - targets[part]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(epoch, loss.item(), optimizer.param_groups[0]["lr"])
