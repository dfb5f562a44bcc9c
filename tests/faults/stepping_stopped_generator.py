"""A GAN whose generator is only stepped while the judge is bad; the judge never is again."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
yes, no = torch.ones(32, 1), torch.zeros(32, 1)
for step in range(120):
    real = torch.randn(32, 2) * 0.1 + torch.tensor([1.0, 2.0])
    fake = generator(torch.randn(32, 4))
    of_judge.zero_grad()
    loss = F.binary_cross_entropy_with_logits(judge(real), yes)
    (loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), no)).backward()
    of_judge.step()
    of_generator.zero_grad()
    F.binary_cross_entropy_with_logits(judge(fake), yes).backward()
    if step < 40:
        of_generator.step()
