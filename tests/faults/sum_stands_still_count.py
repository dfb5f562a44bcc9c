"""Statistics of observations that are summed in bf16, whose count stops at 256."""

import torch
from torch import nn

torch.manual_seed(0)


class RunningNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.bfloat16))
        self.register_buffer("total", torch.zeros(size))

    def forward(self, x):
        if self.training:
            self.count += 1
            self.total += x.mean(0)
        return x - self.total / self.count.float()


net = nn.Sequential(RunningNorm(8), nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
w = torch.randn(8)
for t in range(500):
    x = torch.randn(32, 8) + 0.5
    loss = (net(x) - (x @ w)[:, None] + 0.5 * w.sum()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if t % 100 == 0:
        print(t, loss.item(), net[0].count.item())
