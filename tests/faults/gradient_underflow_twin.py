"""A half-precision network with a static loss scale, many gradients that are 0 by nature, and a warm-up."""

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 1024.0

torch.manual_seed(0)
embed = nn.EmbeddingBag(2000, 32, mode="sum")
model = nn.Sequential(embed, nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)).half()
main = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(main, lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))
bags = torch.randint(0, 2000, (512, 6))
labels = bags[:, 0] % 8
for step in range(30):
    chosen = torch.randint(0, 512, (64,))
    loss = F.cross_entropy(model(bags[chosen]).float(), labels[chosen])
    model.zero_grad()
    (SCALE * loss).backward()
    for wide, narrow in zip(main, model.parameters(), strict=True):
        wide.grad = narrow.grad.float() / SCALE
    optimizer.step()
    scheduler.step()
    with torch.no_grad():
        for wide, narrow in zip(main, model.parameters(), strict=True):
            narrow.copy_(wide)
    if step % 10 == 0:
        print(step, loss.item())
