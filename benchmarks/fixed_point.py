"""Fixed point against nics_fix_pt's meaning in plain torch ops, and a training step with everything quantized.

    python benchmarks/fixed_point.py [--json]

Times are CPU time on one thread, medians of rounds that take turns in one process. The first ratio says how many times
faster a 16M tensor is quantized (auto, max) than by the formulas in torch operations; the second how much longer a
step of a small ResNet takes when every weight, activation, gradient and error is in 8-bit fixed point.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.kernels import kernels_in_use
from roundoff.kernels.rounding_rules import FixedRule
from roundoff.kernels.scaled_fixed_point import quantize_fixed
from roundoff.precision.fixed import FixedPointSettings, convert_to_fixed_point

SIZE = 16_000_000
BITS = 8
TENSOR_ROUNDS = 9
STEP_ROUNDS = 15


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Add what two convolutions make of `x` to it."""
        y = self.relu1(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def small_resnet(width: int = 32) -> nn.Module:
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = [Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*stem, *blocks, *head)


def plain_quantize(x: Tensor) -> Tensor:
    """Auto range from the maximum, then round and clamp, in the operations that the formulas name."""
    largest = torch.max(torch.max(torch.abs(x)), torch.tensor(1e-5))
    scale = torch.pow(2, torch.ceil(torch.log2(largest)))
    step = 2 * scale / 2**BITS
    return torch.max(torch.min(torch.round(x / step) * step, scale), -scale)


def training_step(*, is_quantized: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    model = small_resnet()
    if is_quantized:
        convert_to_fixed_point(model, FixedPointSettings.uniform(bits=BITS), norms="quantized")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))

    def step() -> object:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def ratio_of(first: Callable[[], object], second: Callable[[], object], *, rounds: int) -> float:
    """Return the median time of the first over that of the second."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        for work, times in zip((first, second), seconds, strict=True):
            start = time.process_time()
            work()
            if turn >= 2:  # the first ones warm up
                times.append(time.process_time() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def measure() -> list[dict[str, object]]:
    x, scale, rule = torch.randn(SIZE), torch.zeros(()), FixedRule(num_bits=BITS, nics=True)

    def ours() -> Tensor:
        return quantize_fixed(x, scale, rule, follow="data").values

    assert torch.equal(ours(), plain_quantize(x))
    faster = ratio_of(lambda: plain_quantize(x), ours, rounds=TENSOR_ROUNDS)
    slower = ratio_of(training_step(is_quantized=True), training_step(is_quantized=False), rounds=STEP_ROUNDS)
    return [
        {
            "what": "quantize 16M, times faster than plain torch",
            "ratio": round(faster, 2),
            "must": 4.0,
            "towards": 8.0,
            "met": faster >= 4.0,
        },
        {
            "what": "training step, all quantized, over fp32",
            "ratio": round(slower, 2),
            "must": 2.0,
            "towards": 1.4,
            "met": slower <= 2.0,
        },
    ]


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(rows, indent=1))
    else:
        print(f"fixed point, one thread, {kernels_in_use()}; ratio (must / towards)")
        for row in rows:
            print(f"  {row['what']:45} {row['ratio']:5.2f}  ({row['must']:g} / {row['towards']:g})")
    return int(not all(row["met"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
