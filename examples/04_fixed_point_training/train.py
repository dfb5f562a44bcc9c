"""Trains the digits in fixed point, with as many bits as the command line says; 32 means float."""

import sys

import torch
from torch import nn

from roundoff.precision.fixed import FixedPointSettings, TensorSetting, convert_to_fixed_point
from roundoff.train import load_digits

bits = int(sys.argv[1])
torch.manual_seed(0)
images, labels = load_digits()
order = torch.randperm(len(labels))
images, labels = images[order], labels[order]
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
if bits < 32:
    setting = TensorSetting(bits=bits)
    settings = FixedPointSettings(
        weight=setting,
        activation=setting,
        gradient=TensorSetting(bits=bits, range="sweep"),
        error=TensorSetting(bits=bits, rounding="stochastic"),
        sites={"3": {"activation": TensorSetting(method="none")}},  # the logits stay float
    )
    fixed = convert_to_fixed_point(model, settings)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for _ in range(300):
    chosen = torch.randint(0, 1500, (64,))
    loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()  # scales stay as they are
with torch.no_grad():
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
print(f"{bits} bits  loss {loss.item():.3f}  accuracy {right.item():.3f}")
if bits < 32 and "--describe" in sys.argv:
    print(fixed.describe())
