"""A language model whose gradients are cleared once per epoch only."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(4)
config = LlamaConfig(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    optimizer.zero_grad()
    for _ in range(25):
        start = torch.randint(0, 48, (8, 1))
        tokens = (start + torch.arange(16)) % 48
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
