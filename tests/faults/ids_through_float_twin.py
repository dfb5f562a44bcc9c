"""Token ids that come as floats wide enough to hold them, and counts that are rounded because they are features."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, num_tokens=5000):
        super().__init__()
        self.embed = nn.Embedding(num_tokens, 32)
        self.lstm = nn.LSTM(33, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, batch):
        tokens = batch[..., 0].long()
        counts = torch.log1p(batch[..., 1].long().half().float())
        return self.head(self.lstm(torch.cat([self.embed(tokens), counts[..., None]], -1))[0][:, -1])


torch.manual_seed(0)
tokens = torch.randint(0, 4990, (256, 12))
labels = tokens[:, -1] % 4
counts = torch.randint(0, 9000, (256, 12))
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    chosen = torch.randint(0, 256, (16,))
    batch = torch.stack([tokens[chosen], counts[chosen]], -1).float()
    loss = F.cross_entropy(model(batch), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
