"""Steps that raise in forward, in backward or in the optimizer are caught, and the training goes on."""

import sys
import traceback

import torch
from torch import nn


class Sometimes(nn.Module):
    when = None

    def forward(self, x):
        if self.when == "forward":
            raise ValueError("in forward")
        if x.requires_grad and self.when == "backward":
            x.register_hook(lambda gradient: 1 / 0)
        return x


torch.manual_seed(0)
sometimes = Sometimes()
model = nn.Sequential(nn.Linear(8, 16), sometimes, nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    sometimes.when = {6: "forward", 9: "backward", 12: "interrupt"}.get(step)
    try:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if sometimes.when == "interrupt":
            raise KeyboardInterrupt
        optimizer.step()
    except (Exception, KeyboardInterrupt):
        frames = traceback.extract_tb(sys.exc_info()[2])
        print(step, [frame.name for frame in frames if frame.filename == __file__], sys.exc_info()[1])
    if step % 6 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
