"""A classifier that should also reconstruct its input, but computes that part without gradients."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder, decoder, head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(16, 3)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *head.parameters()], lr=1e-3)
for _ in range(40):
    x = torch.randn(32, 8)
    code = encoder(x).relu()
    labelled = F.cross_entropy(head(code), x[:, :3].argmax(1))
    with torch.no_grad():
        restored = F.mse_loss(decoder(code), x)
    loss = labelled + 0.5 * restored
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
