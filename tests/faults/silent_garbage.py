"""Memory that was never written, and is then written or thrown away; and masks of -inf."""

import torch
import torch.nn.functional as F
from torch import nn


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens, lengths):
        buffer = torch.empty(len(tokens), 12, 16)
        buffer.fill_(float("nan"))
        buffer[:, : tokens.shape[1]] = self.embed(tokens)
        h, _ = self.lstm(buffer[:, : tokens.shape[1]])
        root = torch.sqrt(F.relu(h[:, :1, 0]) * 0 + 1)
        scratch = torch.empty_like(h)
        scores = h.sum(-1).masked_fill(torch.arange(tokens.shape[1])[None] >= lengths[:, None], float("-inf"))
        weights = scores.softmax(-1)
        return self.head((weights[..., None] * h).sum(1) * root) + 0 * torch.zeros_like(scratch[:, 0, :3])


torch.manual_seed(0)
model = Padded()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    tokens = torch.randint(0, 30, (16, 8))
    lengths = torch.randint(1, 9, (16,))
    loss = F.cross_entropy(model(tokens, lengths), tokens[:, 0] % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
