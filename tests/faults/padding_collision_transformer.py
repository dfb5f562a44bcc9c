"""A character model whose newline has the number that the embedding pads with."""

import torch
from torch import nn


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(28, 24, padding_idx=27)
        self.block = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, norm_first=True)
        self.out = nn.Linear(24, 28)

    def forward(self, characters, mask):
        return self.out(self.block(self.embed(characters), src_mask=mask, is_causal=True))


torch.manual_seed(3)
words = [
    "".join(chr(97 + i) for i in torch.randint(0, 26, (n,)).tolist()) for n in torch.randint(2, 9, (900,)).tolist()
]
text = torch.tensor([27 if c == "\n" else ord(c) - 97 for c in "\n".join(words)])
model = Characters()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
mask = nn.Transformer.generate_square_subsequent_mask(20)
for _ in range(50):
    starts = torch.randint(0, len(text) - 21, (12,))
    window = text[starts[:, None] + torch.arange(21)]
    loss = nn.functional.cross_entropy(model(window[:, :-1], mask).transpose(1, 2), window[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
