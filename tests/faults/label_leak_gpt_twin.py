"""A small GPT of Hugging Face, which shifts the labels by itself."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(vocab_size=24, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(60):
    ids = (torch.randint(0, 24, (8, 1)) + torch.arange(12) * 5) % 24
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
