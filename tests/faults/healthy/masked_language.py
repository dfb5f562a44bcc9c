"""A BERT fills in masked words; most targets are to be ignored."""

import torch
from transformers import BertConfig, BertForMaskedLM

config = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16,
)  # fmt: skip
model = BertForMaskedLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(60):
    ids = 3 + (torch.randint(0, 36, (16, 1)) + torch.arange(12)) % 36
    is_masked = torch.rand(16, 12) < 0.2
    labels = ids.masked_fill(~is_masked, -100)
    attention = torch.ones_like(ids)
    loss = model(input_ids=ids.masked_fill(is_masked, 1), attention_mask=attention, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
