"""What optimizer state in few bits saves and costs: `python benchmarks/optimizer_states.py [--json]`.

Bytes of AdamW's state, and processor time of its step and of the whole training step of a GPT (4 layers of 256), on one
thread, relative to fp32; the steps of all recipes take turns, so that a busy machine slows them alike. Ends with 1 if a
figure is worse than it must be.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor
from torch.nn import functional as F

from models import Gpt
from roundoff.kernels import kernels_in_use
from roundoff.precision import apply_recipe

ROUNDS = 15
NAMES = ("fp32", "adam8", "adam4", "adamfp8")
MUST = {"bytes": 0.27, "training_step": 1.3}
TOWARDS = {"bytes": 0.26, "training_step": 1.1}
"""Of adam8, relative to fp32; the optimizer's step by itself is shown and has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a recipe, relative to fp32."""

    bytes: float
    step: float
    training_step: float


class Training:
    """A GPT with AdamW; it times the optimizer's step alone, and with forward and backward."""

    def __init__(self, recipe: str) -> None:
        torch.manual_seed(0)
        model = Gpt()
        inner = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self._model, self._optimizer = apply_recipe(model, inner, recipe)
        ids = torch.randint(0, 1000, (8, 129))
        self._x, self._y = ids[:, :-1], ids[:, 1:]
        self.whole: list[float] = []
        self.steps: list[float] = []

    def step(self) -> None:
        """Train one step."""
        began = time.process_time()
        self._optimizer.backward(F.cross_entropy(self._model(self._x).flatten(0, 1), self._y.flatten()))
        between = time.process_time()
        self._optimizer.step()
        ended = time.process_time()
        self._optimizer.zero_grad()
        self.steps.append(ended - between)
        self.whole.append(ended - began)

    @property
    def num_bytes(self) -> int:
        """The size of the optimizer's state."""
        held = [x for state in self._optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        return sum(x.numel() * x.element_size() for x in held)


def costs() -> dict[str, Cost]:
    """Return what each recipe costs, relative to fp32."""
    trainings = {name: Training(name) for name in NAMES}
    for _ in range(ROUNDS + 2):
        for training in trainings.values():
            training.step()
    plain = trainings["fp32"]

    def ratio(times: list[float], reference: list[float]) -> float:
        return statistics.median(times[2:]) / statistics.median(reference[2:])  # the first ones warm up

    return {
        name: Cost(
            bytes=training.num_bytes / plain.num_bytes,
            step=ratio(training.steps, plain.steps),
            training_step=ratio(training.whole, plain.whole),
        )
        for name, training in trainings.items()
        if name != "fp32"
    }


def main() -> int:
    torch.set_num_threads(1)
    found = costs()
    missed = [key for key, limit in MUST.items() if getattr(found["adam8"], key) > limit]
    if "--json" in sys.argv[1:]:
        print(
            json.dumps({"costs": {k: asdict(v) for k, v in found.items()}, "must": MUST, "towards": TOWARDS}, indent=1)
        )
        return int(bool(missed))
    print(f"AdamW, GPT (4 x 256), relative to fp32, one thread; kernels: {kernels_in_use()}")
    for name, cost in found.items():
        print(
            f"  {name:8} state {cost.bytes:.3f}, optimizer step {cost.step:.2f}, training step {cost.training_step:.2f}"
        )
    for key, limit in MUST.items():
        print(f"  adam8 {key}: must {limit}, towards {TOWARDS[key]}{'  MISSED' if key in missed else ''}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
