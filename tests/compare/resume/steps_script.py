"""A training that computes batch and learning rate from the step, as small language models do; `resume FAULT...`."""

import math
import random
import sys

import numpy as np
import torch
from torch import nn

IS_RESUMED, FAULTS = sys.argv[1] == "resume", set(sys.argv[2:])
NUM_STEPS = 40
SAVED = 26

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
tokens = torch.randint(0, 30, (4000,), generator=torch.Generator().manual_seed(1))
model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 30))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def rate(step: int) -> float:
    return 3e-3 * min((step + 1) / 10, 0.5 * (1 + math.cos(math.pi * step / NUM_STEPS)))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, 3900, (8,), generator=torch.Generator().manual_seed(step))
    rows = torch.stack([tokens[start : start + 17] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


first = 0
if IS_RESUMED:
    saved = torch.load("steps.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"] + ("behind" not in FAULTS) + ("ahead" in FAULTS)
for step in range(first, NUM_STEPS):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    inputs, targets = batch(step)
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step + 1 == SAVED and not IS_RESUMED:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "steps.pt")
