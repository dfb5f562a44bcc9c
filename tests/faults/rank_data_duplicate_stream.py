"""Two ranks of a language model that draw their batches from generators with the same seed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(26, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, 26)

    def forward(self, letters):
        return self.out(self.rnn(self.embed(letters))[0])


dist.init_process_group("gloo")
torch.manual_seed(23)
text = torch.randint(0, 26, (4000,))
model = Parallel(Letters())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(14):
    starts = torch.randint(0, 3900, (8,))
    batch = torch.stack([text[start : start + 21] for start in starts])
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
