"""Fine-tuning: a body with learned statistics stays frozen, norms in eval mode; only the head is trained."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
with torch.no_grad():
    for _ in range(20):
        body(torch.randn(32, 3, 8, 8) + 1)
model = nn.Sequential(body, nn.Linear(32, 4))
body.requires_grad_(False)
optimizer = torch.optim.Adam(model[1].parameters(), lr=1e-2)
shapes = torch.randn(4, 3, 8, 8)
for _ in range(60):
    model.train()
    body.eval()
    labels = torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(model(shapes[labels] + torch.randn(16, 3, 8, 8)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
