"""A stream of sentences that every worker reads from its beginning."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Sentences(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        for _ in range(300):
            start = int(torch.randint(0, 20, (1,), generator=generator))
            yield (start + torch.randint(1, 3, (12,), generator=generator).cumsum(0)) % 20


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True)
        self.head = nn.Linear(24, 20)

    def forward(self, input_ids, labels):
        scores = self.head(self.lstm(self.tokens(input_ids))[0])
        return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for ids in DataLoader(Sentences(), batch_size=12, num_workers=3):
    loss = model(input_ids=ids, labels=ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
