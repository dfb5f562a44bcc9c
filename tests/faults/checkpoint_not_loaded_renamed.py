"""The body of a tagger has got another name since the checkpoint was saved; only the head is loaded."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.add_module(name, nn.LSTM(8, 16, batch_first=True, num_layers=2))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(getattr(self, self.name)(x)[0])


torch.manual_seed(5)
torch.save(Tagger("encoder").state_dict(), "tagger.pt")
tagger = Tagger("body")
tagger.load_state_dict(torch.load("tagger.pt"), strict=False)
optimizer = torch.optim.Adam(tagger.parameters(), lr=2e-3)
for step in range(30):
    x = torch.randn(16, 6, 8)
    loss = nn.functional.cross_entropy(tagger(x).flatten(0, 1), x[..., :4].argmax(-1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
