"""Two ranks whose loss is not finite from step 6 on, and something of ours that fails on rank 1 at one moment.

Arguments: where the weights go, and the moment.
"""

import errno
import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MOMENT = sys.argv[2]
IS_REPLAYED = "roundoff.watch.watching" in sys.modules

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()


def fail(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "planted")


class Picky(nn.Module):
    """On rank 1, its user's code does not like to be run twice on one batch."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, x):
        if rank == 1 and MOMENT == "users-code" and step == 6:
            if hasattr(model, "was_here"):
                raise ValueError("planted")
            object.__setattr__(model, "was_here", True)
        return x * self.scale


if rank == 1 and IS_REPLAYED:
    from roundoff.errors import RunFolderError
    from roundoff.replay.saved.step_inputs import StepInputsWriter
    from roundoff.runs import writer
    from roundoff.watch.detector import AnomalyDetector

    if MOMENT == "replay-folder":
        create = writer.RunWriter.create

        def create_or_fail(folder, *args, **kwargs):
            if "replay" in str(folder):
                raise RunFolderError("planted: no space left")
            return create(folder, *args, **kwargs)

        writer.RunWriter.create = create_or_fail
    if MOMENT == "state":
        StepInputsWriter.write_state = fail
    if MOMENT == "first-events":
        writer.PartWriter.add = fail

torch.manual_seed(0)
layers = [nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), Picky(), nn.Linear(32, 4)]
model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for step in range(12):
    if rank == 1 and IS_REPLAYED and step == 4:
        if MOMENT == "watch":
            AnomalyDetector.see_loss = fail
        if MOMENT == "flush":
            writer.append_lines = fail
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    if step >= 6:
        loss = loss * float("inf")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), f"{sys.argv[1]}.{rank}")
torch.distributed.destroy_process_group()
