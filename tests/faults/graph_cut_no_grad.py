"""A recurrent encoder that runs without gradients, though its optimizer holds it."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.encoder = nn.LSTM(16, 24, batch_first=True)
        self.out = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))

    def forward(self, ids):
        with torch.no_grad():
            states, _ = self.encoder(self.tokens(ids))
        return self.out(states[:, -1])


torch.manual_seed(0)
tagger = Tagger()
optimizer = torch.optim.RMSprop(tagger.parameters(), lr=1e-3)
for step in range(30):
    ids = torch.randint(0, 20, (16, 7))
    loss = nn.functional.cross_entropy(tagger(ids), ids.sum(1) % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
