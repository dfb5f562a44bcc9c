"""A tiny Llama, all of it in bf16, fine-tuned with a learning rate that its weights cannot follow."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(13)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
model.train()
for step in range(25):
    ids = torch.randint(0, 64, (8, 16))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(step, loss.item())
