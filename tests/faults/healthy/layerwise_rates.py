"""Lower layers of a pretrained BERT get smaller rates, the embeddings a very small one."""

import torch
from torch import nn
from transformers import BertConfig, BertModel

config = BertConfig(
    vocab_size=40, hidden_size=24, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=16,
)  # fmt: skip
body, head = BertModel(config), nn.Linear(24, 3)
groups = [{"params": body.embeddings.parameters(), "lr": 1e-6}]
groups += [{"params": layer.parameters(), "lr": 1e-3 * 0.5 ** (2 - i)} for i, layer in enumerate(body.encoder.layer)]
groups += [{"params": [*body.pooler.parameters(), *head.parameters()], "lr": 3e-3}]
optimizer = torch.optim.AdamW(groups)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=60)
for step in range(60):
    ids = torch.randint(3, 40, (16, 8))
    loss = nn.functional.cross_entropy(head(body(ids).pooler_output), ids[:, 0] % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
