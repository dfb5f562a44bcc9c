"""An optimizer for a body that is frozen for the first thirty steps: it steps without effect until then."""

import torch
import torch.nn.functional as F
from torch import nn

body, head = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), nn.Linear(32, 3)
body.requires_grad_(False)
of_body = torch.optim.SGD(body.parameters(), lr=0.05)
of_head = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(150):
    if step == 12:
        body.requires_grad_(True)
    x = torch.randn(32, 8)
    loss = F.cross_entropy(head(body(x)), x[:, :3].argmax(1))
    of_body.zero_grad()
    of_head.zero_grad()
    loss.backward()
    of_body.step()
    of_head.step()
