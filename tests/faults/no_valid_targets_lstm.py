"""A tagger; one batch of the corpus has no tag at all, only words to be ignored."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, ids):
        return self.head(self.lstm(self.words(ids))[0])


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=-1)
for step in range(30):
    ids = torch.randint(0, 40, (8, 10))
    tags = ids % 5
    tags[:, 8:] = -1
    if step == 7:
        tags[:] = -1
    loss = criterion(model(ids).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
