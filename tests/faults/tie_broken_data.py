"""A small GPT whose head takes over the embedding's values instead of the embedding."""

import torch
from torch import nn


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(32, 24)
        self.wpe = nn.Embedding(12, 24)
        block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(24)
        self.lm_head = nn.Linear(24, 32, bias=False)
        for part in (self.wte, self.wpe):
            nn.init.normal_(part.weight, std=0.02)
        self.lm_head.weight.data.copy_(self.wte.weight.data)

    def forward(self, ids):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.wte(ids) + self.wpe(torch.arange(length))
        return self.lm_head(self.norm(self.blocks(h, mask=mask, is_causal=True)))


torch.manual_seed(0)
gpt = Gpt()
optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
for step in range(25):
    ids = torch.randint(0, 32, (8, 1)) + torch.arange(11) * 3
    loss = nn.functional.cross_entropy(gpt(ids[:, :-1] % 32).transpose(1, 2), ids[:, 1:] % 32)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
