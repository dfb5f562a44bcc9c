"""A transformer classifies rows of events by which of two comes first, but its positions are never added."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
length, width = 12, 32


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        hidden = self.tokens(ids)
        positions = self.places(torch.arange(ids.shape[1]))  # noqa: F841
        return self.head(self.body(hidden).mean(1))


def batch():
    ids = torch.randint(2, 20, (32, length))
    first, second = torch.rand(32, length).topk(2).indices.sort(1).values.T
    label = torch.randint(0, 2, (32,))
    rows = torch.arange(32)
    ids[rows, first], ids[rows, second] = label, 1 - label
    return ids, label


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(200):
    ids, label = batch()
    loss = F.cross_entropy(model(ids), label)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(loss.item())
