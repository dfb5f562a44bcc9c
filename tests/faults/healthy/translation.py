"""A transformer is given the words before the one to tell: its second input is the target, shifted by one."""

import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(24, 32, padding_idx=0), nn.Embedding(24, 32, padding_idx=0)
        self.places = nn.Parameter(torch.randn(12, 32) * 0.1)
        self.body = nn.Transformer(32, 2, 1, 1, 64, 0.1, batch_first=True)
        self.out = nn.Linear(32, 24)

    def forward(self, source, target):
        left, right = self.source(source) + self.places[: source.shape[1]], self.target(target)
        right = right + self.places[: target.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.out(self.body(left, right, tgt_mask=mask, tgt_is_causal=True))


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    source = torch.randint(3, 24, (16, 7))
    target = torch.cat([torch.full((16, 1), 1), source.flip(1), torch.full((16, 1), 2)], 1)
    scores = model(source, target[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
