"""Several tags per text, learned with logits; the evaluation rounds the logits."""

import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(50, 24)
        self.tags = nn.Linear(24, 5)

    def forward(self, ids, labels=None):
        logits = self.tags(self.words(ids))
        loss = None if labels is None else F.binary_cross_entropy_with_logits(logits, labels)
        return logits if loss is None else loss


torch.manual_seed(0)
ids = torch.randint(0, 50, (400, 8))
labels = torch.stack([(ids % 5 == tag).sum(1) > 1 for tag in range(5)], 1).float()
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
for step in range(90):
    rows = torch.randint(0, 300, (50,))
    loss = model(ids[rows], labels=labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        model.eval()
        with torch.no_grad():
            predicted = model(ids[300:]).round()
            print((predicted == labels[300:]).float().mean().item())
        model.train()
