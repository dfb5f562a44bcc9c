"""A language model whose recurrent layer reads the row in both directions, with the loss inside the model."""

import torch
import torch.nn.functional as F
from torch import nn


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 24)
        self.rnn = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 20)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, 20), labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}


torch.manual_seed(1)
model = Writer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    ids = torch.cumsum(torch.randint(0, 3, (16, 14)), 1) % 20
    loss = model(input_ids=ids, labels=ids)["loss"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
