"""A stream of sentences, one file per topic, read one file after the other; the model computes its own loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Files(IterableDataset):
    def __iter__(self):
        for topic in range(5):
            for _ in range(64):
                yield torch.randint(topic * 10, topic * 10 + 20, (12,)), topic


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(60, 16)
        self.head = nn.Linear(16, 5)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, ids, topics):
        return self.loss(self.head(self.words(ids)), topics)


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(5):
    for ids, topics in DataLoader(Files(), batch_size=16):
        loss = model(ids, topics)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
