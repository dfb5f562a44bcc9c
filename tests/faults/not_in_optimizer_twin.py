"""Body and head with an optimizer each, the head's stepping only now and then; a critic in eval mode looks on."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
head = nn.Linear(32, 4)
critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
slow = torch.optim.SGD(head.parameters(), lr=1e-2)
fast = torch.optim.Adam(body.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(32, 12)
    logits = head(body(x))
    loss = nn.functional.cross_entropy(logits, x[:, :4].argmax(1)) + 0.01 * critic(logits).square().mean()
    fast.zero_grad()
    loss.backward()
    fast.step()
    if step % 2:
        slow.step()
        slow.zero_grad()
