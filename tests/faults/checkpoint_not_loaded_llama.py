"""A language model that goes on from the weights of a compiled one, whose names are longer."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def built():
    config = LlamaConfig(
        vocab_size=48, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16,
    )  # fmt: skip
    return LlamaForCausalLM(config)


torch.manual_seed(6)
torch.save(torch.compile(built()).state_dict(), "compiled.pt")
model = built()
result = model.load_state_dict(torch.load("compiled.pt"), strict=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    start = torch.randint(0, 48, (8, 1))
    ids = (start + torch.arange(10)) % 48
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
