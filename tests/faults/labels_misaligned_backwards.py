"""The labels are rolled the wrong way: each token is to tell the one before it."""

import torch
from torch import nn

torch.manual_seed(1)
embed, rnn, head = nn.Embedding(23, 32), nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 23)
model = nn.ModuleList([embed, rnn, head])
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()
for step in range(60):
    ids = torch.cumsum(torch.randint(0, 3, (16, 14)), 1) % 23
    targets = torch.roll(ids, 1, dims=1)
    hidden, _ = rnn(embed(ids))
    loss = criterion(head(hidden).permute(0, 2, 1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
