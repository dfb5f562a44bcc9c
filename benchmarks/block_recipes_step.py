"""What recipes with blocks cost when they are emulated: `python benchmarks/block_recipes_step.py [--json]`.

Processor time of whole training steps of a GPT (4 layers of 256) on one thread, relative to fp32; the steps of all
recipes take turns, so that a busy machine slows them alike. Ends with 1 if a figure is worse than it must be.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.nn import functional as F

from models import Gpt
from roundoff.precision import apply_recipe

ROUNDS = 9
LIMITS = {"nvfp4": (2.0, 1.4), "fp8-block": (1.6, 1.25), "fp8-rowwise": (1.6, 1.25)}
"""What the ratio to fp32 must not exceed, and where it should be."""


def step_of(recipe: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Gpt()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = apply_recipe(model, inner, recipe)
    ids = torch.randint(0, 1000, (8, 129))
    x, y = ids[:, :-1], ids[:, 1:]

    def step() -> None:
        optimizer.backward(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
        optimizer.step()
        optimizer.zero_grad()

    return step


def ratios() -> dict[str, float]:
    steps = {name: step_of(name) for name in ("fp32", *LIMITS)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if number:
                seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {name: medians[name] / medians["fp32"] for name in LIMITS}


def main() -> int:
    torch.set_num_threads(1)
    found = ratios()
    if "--json" in sys.argv[1:]:
        limits = {name: {"must": must, "towards": towards} for name, (must, towards) in LIMITS.items()}
        print(json.dumps({"ratios": found, "limits": limits}, indent=1))
    else:
        print("emulated training step of a GPT (4 x 256), relative to fp32, one thread; must / towards")
        for name, ratio in found.items():
            print(f"  {name:12} {ratio:5.2f}  ({LIMITS[name][0]} / {LIMITS[name][1]})")
    return int(any(ratio > LIMITS[name][0] for name, ratio in found.items()))


if __name__ == "__main__":
    sys.exit(main())
