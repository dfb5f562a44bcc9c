"""Default dtype, device, threads and determinism are changed, and an anomaly mode of torch's is on."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
torch.set_default_device("cpu")
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
torch.set_printoptions(precision=3)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
with torch.autograd.set_detect_anomaly(True):
    for _ in range(24):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(torch.get_default_dtype(), torch.get_default_device(), torch.are_deterministic_algorithms_enabled())
print(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), loss)
torch.save(model.state_dict(), sys.argv[1])
