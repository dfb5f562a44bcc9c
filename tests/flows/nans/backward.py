"""sqrt of 0 in the branch that `where` does not take: the loss is fine, the gradients are not, from step 5 on."""

import torch
from torch import nn


class Root(nn.Module):
    def forward(self, h):
        return torch.where(h > 0, torch.sqrt(h), 0.0)  # here


torch.manual_seed(0)
body, root, head = nn.Linear(8, 8), Root(), nn.Linear(8, 4)
model = nn.ModuleDict({"body": body, "root": root, "head": head})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    x = torch.randn(16, 8)
    h = body(x).abs() + 0.1
    if step == 5:
        h = h * (x > 0)
    loss = nn.functional.cross_entropy(head(root(h)), torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
