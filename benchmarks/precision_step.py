"""What recipes cost: `python benchmarks/precision_step.py [--json]`.

Processor time of whole training steps (forward, backward, update, zero_grad) of the reference ResNet-small on one
thread; the steps of all recipes take turns, so that a busy machine slows them alike. The accuracy is that of O1 and of
torch.amp (autocast and GradScaler) after the same few epochs on the digits. Ends with 1 if a figure is worse than it
must be.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.precision import apply_recipe
from roundoff.train.digits import train_test
from roundoff.train.models.resnet import resnet_small

ROUNDS = 15
BATCH = 64
LIMITS = {
    "O2 emulated / fp32": (1.5, 1.25),
    "O1 / torch.amp": (1.05, 1.0),
    "O1 native / torch.amp": (1.05, 1.0),
}
"""What a ratio must not exceed, and where it should be."""
Step = Callable[[Tensor, Tensor], None]


def net(width: int) -> nn.Module:
    torch.manual_seed(0)
    return resnet_small(num_classes=10, channels=1, width=width)


def plain_step(width: int) -> tuple[nn.Module, Step]:
    model = net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def amp_step(width: int) -> tuple[nn.Module, Step]:
    model = net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")

    def step(x: Tensor, y: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return model, step


def recipe_step(recipe: str, width: int, arithmetic: str = "auto") -> tuple[nn.Module, Step]:
    model = net(width)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = apply_recipe(model, inner, recipe, arithmetic=arithmetic)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def seconds_of(step: Step, x: Tensor, y: Tensor) -> float:
    start = time.process_time()
    step(x, y)
    return time.process_time() - start


def medians(steps: dict[str, Step], x: Tensor, y: Tensor, rounds: int = ROUNDS) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            taken = seconds_of(step, x, y)
            if number > 1:
                seconds[name].append(taken)
    return {name: statistics.median(times) for name, times in seconds.items()}


def accuracy_after(model: nn.Module, step: Step, epochs: int = 3) -> float:
    train, test = train_test()
    x, y = train.tensors
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for chosen in torch.randperm(len(y), generator=order).split(BATCH):
            step(x[chosen], y[chosen])
    model.eval()
    x, y = test.tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def measure(width: int, size: int) -> tuple[dict[str, float], dict[str, float]]:
    torch.manual_seed(1)
    x, y = torch.randn(BATCH, 1, size, size), torch.randint(0, 10, (BATCH,))
    steps = {
        "fp32": plain_step(width)[1],
        "O2 emulated": recipe_step("O2", width, "emulated")[1],
        "O1": recipe_step("O1", width)[1],
        "O1 native": recipe_step("O1", width, "native")[1],
        "torch.amp": amp_step(width)[1],
    }
    taken = medians(steps, x, y)
    ratios = {name: taken[name.split(" / ")[0]] / taken[name.split(" / ")[1]] for name in LIMITS}
    return ratios, {name: seconds * 1e3 for name, seconds in taken.items()}


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ratios, milliseconds = measure(width=16, size=28)
    accuracy = {
        "O1": accuracy_after(*recipe_step("O1", 8)),
        "torch.amp": accuracy_after(*amp_step(8)),
    }
    is_worse = accuracy["O1"] < accuracy["torch.amp"] - 0.02
    if "--json" in sys.argv[1:]:
        limits = {name: {"must": must, "towards": towards} for name, (must, towards) in LIMITS.items()}
        print(
            json.dumps(
                {"ratios": ratios, "limits": limits, "milliseconds": milliseconds, "accuracy": accuracy}, indent=1
            )
        )
    else:
        print(f"training step of ResNet-small (width 16, 28x28, batch {BATCH}), one thread; must / towards")
        for name, ratio in ratios.items():
            print(f"  {name:22} {ratio:5.2f}  ({LIMITS[name][0]} / {LIMITS[name][1]})")
        print("  " + ", ".join(f"{name} {value:.1f} ms" for name, value in milliseconds.items()))
        print(f"  accuracy on digits: O1 {accuracy['O1']:.3f}, torch.amp {accuracy['torch.amp']:.3f} (within 0.02)")
    return int(is_worse or any(ratio > LIMITS[name][0] for name, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(main())
