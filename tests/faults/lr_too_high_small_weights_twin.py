"""Small initial weights beside norms, with a learning rate of 0.0005 in AdamW."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.places = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        h = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, 1])


model = Encoder()
for parameter in model.parameters():
    if parameter.dim() > 1:
        nn.init.normal_(parameter, std=0.02)
opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
for i in range(80):
    ids = torch.randint(3, 100, (16, 10))
    loss = nn.functional.cross_entropy(model(ids), (ids[:, 1] > 50).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 10 == 0:
        print(i, loss.item())
