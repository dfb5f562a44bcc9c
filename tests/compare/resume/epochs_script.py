"""A training with epochs, dropout, a schedule, a loss scale and an average; `resume FAULT...` forgets some of them."""

import random
import sys

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

IS_RESUMED, FAULTS = sys.argv[1] == "resume", set(sys.argv[2:])
SAVED, LAST = 30, 42


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
x = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
y = x[:, :4].argmax(1)
order = torch.Generator().manual_seed(2)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=order)
model = Net()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20) / (1 + step / 100))
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=12, growth_factor=1.5)
step, used, order_state = 0, 0, order.get_state()

if IS_RESUMED:
    saved = torch.load("checkpoint.pt", weights_only=False)
    weights = saved["model"]
    if "head" in FAULTS:
        weights = {name: value for name, value in weights.items() if not name.startswith("head")}
    if "buffers" in FAULTS:
        weights = {name: value for name, value in weights.items() if "running" not in name}
    model.load_state_dict(weights, strict=not FAULTS & {"head", "buffers"})
    if not FAULTS & {"average", "all"}:
        average.load_state_dict(saved["average"])
    else:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    if not FAULTS & {"optimizer", "all"}:
        optimizer.load_state_dict(saved["optimizer"])
    if not FAULTS & {"schedule", "all"}:
        schedule.load_state_dict(saved["schedule"])
        for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            group["lr"] = rate
    if not FAULTS & {"scaler", "all"}:
        scaler.load_state_dict(saved["scaler"])
    step = saved["step"]
    if not FAULTS & {"sampler", "all"}:
        used, order_state = saved["used"], saved["order"]

while step < LAST:
    order.set_state(order_state)
    batches = iter(loader)
    for _ in range(used):
        next(batches)
    if IS_RESUMED and step == SAVED and not FAULTS & {"generator", "all"}:
        torch.set_rng_state(saved["generator"])
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        step, used = step + 1, used + 1
        if step == SAVED and not IS_RESUMED:
            torch.save(
                {
                    "model": model.state_dict(),
                    "average": average.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "scaler": scaler.state_dict(),
                    "step": step,
                    "used": used,
                    "order": order_state,
                    "generator": torch.get_rng_state(),
                },
                "checkpoint.pt",
            )
            if "stop" in FAULTS:
                sys.exit()
        if step == LAST:
            break
    used, order_state = 0, order.get_state()
