"""The script logs through Python's logging, to stderr and to a file."""

import logging
import sys

import torch
from torch import nn

logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
logging.captureWarnings(True)
logging.getLogger().addHandler(logging.FileHandler("training.log"))
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logging.info("step %d: %s", step, loss.item())
with open("training.log") as log:
    print(log.read())
torch.save(model.state_dict(), sys.argv[1])
