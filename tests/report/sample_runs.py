"""Small runs that pages are made of: recorded for real, in a second; one breaks, one is fine, one has hostile names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from roundoff.diagnose import diagnose_run
from roundoff.record import recording
from roundoff.runs import (
    Anomaly,
    BatchFacts,
    Metrics,
    OptimizerFacts,
    Run,
    Structure,
    TensorFacts,
)
from tests.run_folders import hash_rows, write_run

HOSTILE = "<script>alert(1)</script><img src=x>"
BAD_STEP = 1


class Squared(nn.Module):
    """Multiplies by itself what is scaled; beyond fp16 in the bad step."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        return torch.bmm(y, y.transpose(1, 2)).mean(-1, keepdim=True) + x


class Net(nn.Module):
    """A layer, the product, and a head; the layer can have any name."""

    def __init__(self, name: str, *, eps: float) -> None:
        super().__init__()
        self.add_module(name, nn.Sequential(nn.LayerNorm(8, eps=eps), nn.Linear(8, 8)))
        self.body, self.head, self.name = Squared(), nn.Linear(8, 4), name

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.get_submodule(self.name)(x)))


def record_run(
    folder: Path,
    *,
    num_steps: int = 2,
    num_microbatches: int = 1,
    is_broken: bool = True,
    name: str = "stem",
    eps: float = 1e-5,
    histograms: bool = False,
) -> Run:
    """Record a training; the product of a broken one overflows in step `BAD_STEP`."""
    torch.manual_seed(0)
    dtype = torch.float16 if is_broken else torch.float32
    net = Net(name, eps=eps).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with recording(to=folder, steps=range(num_steps), inputs=True, stacks=True, histograms=histograms):
        for step in range(num_steps):
            net.body.scale = 3000.0 if is_broken and step == BAD_STEP else 1.0
            optimizer.zero_grad()
            for _ in range(num_microbatches):
                x, y = torch.randn(4, 3, 8).to(dtype), torch.randint(0, 4, (4, 3))
                nn.functional.cross_entropy(net(x).float().flatten(0, 1), y.flatten()).backward()
            optimizer.step()
    return Run.open(folder)


def diagnosed(run: Run) -> Run:
    """Write what a diagnosis finds into the run, as the commands do."""
    run.write_findings(diagnose_run(run).findings)
    return run


def write_metrics_run(folder: Path, losses: list[float], **info: object) -> Run:
    """Write a run that was watched and not recorded: its metrics, what the watch saw, and its optimizer."""
    numbers = {"lr": 0.1, "loss_scale": 1024.0, "grad_norm": 1.0, "update_norm": 0.1}
    metrics = [Metrics(step=step, loss=loss, skipped=step == 1, **numbers) for step, loss in enumerate(losses)]
    bad = [Anomaly(step=step, kind="loss", value=loss) for step, loss in enumerate(losses) if loss != loss]
    optimizer = OptimizerFacts(name="SGD", groups=({"lr": 0.1},), recipe='name = "mine"\n')
    return write_run(folder, metrics, bad, Structure(step=0, optimizers=(optimizer,)), **info)


def write_ranks_run(
    folder: Path, *, names: list[str], num_ranks: int = 4, num_steps: int = 6, odd: Callable[[str, int, int], int]
) -> Run:
    """Write what several ranks hashed; `odd` says of kind, step and rank what is added to the last tensor's hash.

    Inputs are each rank's own, unless `odd` is not 0: then they are rank 0's.
    """
    for rank in range(num_ranks):
        contents: list[object] = []
        for step in range(num_steps):
            number = 100 * step + (0 if odd("input", step, rank) else rank)
            given = TensorFacts(place="<model>[0]", shape=(4, 8), dtype="float32", hash=f"{number:016x}")
            contents.append(BatchFacts(step=step, tensors=(given,)))
            for kind in ("gradient", "clipped", "parameter"):
                hashes = [100 * step + index for index in range(len(names))]
                hashes[-1] += odd(kind, step, rank)
                contents.append(hash_rows([(step, kind, *row) for row in zip(names, hashes, strict=True)]))
        run = write_run(folder, contents, rank=rank, ranks=num_ranks)
    return run
