"""Four criteria, each fed what it expects, with a policy loss whose log-probabilities are weighted."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
model, teacher = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6)), nn.Linear(12, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    x = torch.randn(32, 12)
    scores = model(x)
    labels = x[:, :6].argmax(1)
    with torch.no_grad():
        wanted = F.softmax(teacher(x), dim=-1)
        advantages = torch.randn(32)
    logarithms = F.log_softmax(scores, dim=-1)
    likelihood = F.nll_loss(logarithms, labels)
    policy = 0.1 * (advantages * F.nll_loss(logarithms, labels, reduction="none")).mean()
    divergence = F.kl_div(logarithms, wanted, reduction="batchmean") + F.kl_div(
        logarithms, wanted.log(), log_target=True, reduction="batchmean"
    )
    yes_or_no = F.binary_cross_entropy_with_logits(scores[:, 0], (x[:, 0] > 0).float()) + F.binary_cross_entropy(
        torch.sigmoid(scores[:, 1]), (x[:, 1] > 0).float()
    )
    optimizer.zero_grad()
    (likelihood + policy + divergence + yes_or_no).backward()
    optimizer.step()
