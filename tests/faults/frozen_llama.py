"""A language model that learns with its embeddings frozen."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(7)
config = LlamaConfig(
    vocab_size=48, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=16,
)  # fmt: skip
model = LlamaForCausalLM(config)
model.get_input_embeddings().requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
for step in range(30):
    ids = (torch.randint(0, 48, (8, 1)) + torch.arange(10)) % 48
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
