"""Data parallelism by hand, with micro-batches: every rank gets its part of the batch."""

import torch
from parallel import FAULT, STEPS, finish, own_part, rank, reduce_gradients, world
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(7)
num_micro = 3 if "micro" in FAULT and world > 1 else 1
for _ in range(STEPS):
    batch = torch.randn(36, 8, generator=generator)
    x = batch[rank::world] if FAULT == "every_other_sample" else own_part(batch, 0)
    x = batch.chunk(world)[0] if FAULT == "same_part" else x
    optimizer.zero_grad()
    for part in x.chunk(num_micro):
        loss = nn.functional.cross_entropy(model(part), part[:, :4].argmax(1))
        (loss if FAULT == "micro_not_divided" else loss / num_micro).backward()
    if FAULT == "clip_before_reduction":
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if FAULT == "head_not_reduced":
        reduce_gradients(model[:3].parameters())
    elif FAULT != "not_reduced":
        reduce_gradients(model.parameters(), average=FAULT != "not_averaged")
    optimizer.step()
finish()
