"""A tagger that scales its loss and steps as if it had not."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 12)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


torch.manual_seed(3)
tagger = Tagger()
optimizer = torch.optim.SGD(tagger.parameters(), lr=2e-5, momentum=0.9)
scaler = torch.GradScaler("cpu", init_scale=512.0)


def train_step():
    tokens = torch.randint(0, 12, (8, 10))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = tagger(tokens)
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flip(1).flatten())
    tagger.zero_grad()
    scaler.scale(loss).backward()
    torch.optim.SGD.step(optimizer)


for _ in range(60):
    train_step()
