"""Packed sequences of different lengths go through an LSTM."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
embedding, lstm, head = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
parameters = [*embedding.parameters(), *lstm.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-2)
tokens, lengths = torch.randint(0, 20, (6, 7)), torch.tensor([7, 6, 5, 3, 2, 1])
for step in range(24):
    packed = pack_padded_sequence(embedding(tokens), lengths, batch_first=True)
    output, sizes = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    loss = nn.functional.cross_entropy(head(output[range(6), sizes - 1]), tokens[:, 0] % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
torch.save([m.state_dict() for m in (embedding, lstm, head)], sys.argv[1])
