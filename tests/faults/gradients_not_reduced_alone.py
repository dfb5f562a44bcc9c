"""Two ranks that were started together and never communicate: a transformer on each."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(21)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
network = nn.Sequential(nn.Embedding(20, 16), layer, nn.Linear(16, 20))
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
generator = torch.Generator().manual_seed(100 + dist.get_rank())
for _ in range(15):
    tokens = torch.randint(0, 20, (8, 6), generator=generator)
    loss = criterion(network(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
