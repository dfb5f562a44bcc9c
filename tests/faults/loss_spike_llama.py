"""A language model that learns to count gets one batch of garbage."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(22)
config = LlamaConfig(
    vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=16,
)  # fmt: skip
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(140):
    ids = (torch.randint(0, 32, (16, 1)) + torch.arange(12)) % 32
    if step == 120:
        ids = torch.randint(0, 32, (16, 12))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
