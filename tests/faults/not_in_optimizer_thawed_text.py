"""An embedding and encoder that stay frozen for two epochs and are then to be tuned; the optimizer never gets them."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.encoder = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, ids):
        return self.head(self.encoder(self.words(ids))[0][:, -1])


torch.manual_seed(0)
model = Tagger()
for part in (model.words, model.encoder):
    part.requires_grad_(False)
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
for epoch in range(6):
    if epoch == 2:
        for parameter in model.parameters():
            parameter.requires_grad = True
    for _ in range(20):
        ids = torch.randint(0, 40, (32, 6))
        loss = nn.functional.cross_entropy(model(ids), ids[:, -1] % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
