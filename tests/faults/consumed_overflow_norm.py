"""Half-precision features divided by a norm that is computed from their squares, with large inputs."""

import torch
import torch.nn.functional as F
from torch import nn


class Cosine(nn.Module):
    """Classifies by direction."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        h = self.body(x)
        norm = (h**2).sum(dim=-1, keepdim=True).sqrt()
        return self.head(h / norm)


torch.manual_seed(0)
centres = torch.randn(5, 16)
labels = torch.randint(0, 5, (512,))
inputs = (centres[labels] + 0.3 * torch.randn(512, 16)) * 100
model = Cosine().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    chosen = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(inputs[chosen].half()).float(), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
