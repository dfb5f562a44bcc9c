"""A frozen language model with small trainable matrices, one of each pair zero at the start."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LowRank(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + 2 * self.up(self.down(x))


config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=16,
)  # fmt: skip
model = LlamaForCausalLM(config).requires_grad_(False)
for block in model.model.layers:
    block.self_attn.q_proj = LowRank(block.self_attn.q_proj)
    block.self_attn.v_proj = LowRank(block.self_attn.v_proj)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
model.train()
for step in range(60):
    ids = (torch.randint(0, 32, (8, 1)) + torch.arange(10)) % 32
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
