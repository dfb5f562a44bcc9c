"""Token ids that come out of a batch which was moved to half precision as a whole."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, num_tokens=5000):
        super().__init__()
        self.embed = nn.Embedding(num_tokens, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0][:, -1])


torch.manual_seed(0)
tokens = torch.randint(0, 4990, (256, 12))
labels = tokens[:, -1] % 4
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    chosen = torch.randint(0, 256, (16,))
    batch = {"tokens": tokens[chosen], "weights": torch.ones(16)}
    batch = {name: x.half() for name, x in batch.items()}
    loss = F.cross_entropy(model(batch["tokens"].long()), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
