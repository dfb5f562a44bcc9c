"""What compressed activations save and cost: bytes kept for the backward, CPU time of a step, accuracy on digits.

python benchmarks/compressed_activations.py [--rounds N] [--seeds N] [--json]

The step is a small ResNet's (3x32x32 pictures). Bytes before are counted here, over everything that the plain step
hands to autograd, parameters left out, the loss included, each piece of memory once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from models import BasicBlock
from roundoff.kernels import kernels_in_use
from roundoff.precision.activations import ActivationSettings, compress_activations
from roundoff.train.digits import train_test

BITS = (2, 4, 8)
SIZES = {"width 16, batch 64": (16, 64), "width 32, batch 32": (32, 32)}
MUST_RATIO, TOWARDS_RATIO = 12.0, 14.0
MUST_TIME, TOWARDS_TIME = 1.6, 1.25


def resnet(width: int, *, channels: int = 3, blocks: int = 1) -> nn.Sequential:
    """Return a ResNet of three stages, each half as large and twice as wide as the one before."""
    stages = [(width, 1), (2 * width, 2), (4 * width, 2)]
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inside = width
    for outside, stride in stages:
        for block in range(blocks):
            layers.append(BasicBlock(inside, outside, stride if block == 0 else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that a plain step keeps for its backward, parameters left out, each memory once."""
    weights = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no address comes back

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in weights:
            kept[x.untyped_storage().data_ptr()] = x.detach()
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        forward()
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def cpu_seconds(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def measure_step(width: int, batch: int, *, rounds: int) -> dict[str, float]:
    """Time plain and compressed steps in turn, and count bytes."""
    torch.manual_seed(0)
    model = resnet(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def forward() -> Tensor:
        return F.cross_entropy(model(x), y)

    def step() -> None:
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    before = saved_bytes(model, forward)
    seconds: dict[int, list[float]] = {32: [], **{bits: [] for bits in BITS}}
    got: dict[str, float] = {"bytes_before": before}
    for _ in range(rounds + 1):
        seconds[32].append(cpu_seconds(step))
        for bits in BITS:
            with compress_activations(model, ActivationSettings(bits=bits)) as compressed:
                seconds[bits].append(cpu_seconds(step))
            report = compressed.report()
            outside = before - report.bytes_before  # the loss, which is not compressed
            got[f"ratio{bits}"] = before / (report.bytes_after + outside)
    plain = statistics.median(seconds[32][1:])  # the first ones warm up
    got["plain_ms"] = plain * 1e3
    for bits in BITS:
        got[f"time{bits}"] = statistics.median(seconds[bits][1:]) / plain
    return got


def accuracy(bits: int, *, seed: int, epochs: int) -> float:
    """Train a small ResNet on the digits and return its accuracy on those left out."""
    train, test = train_test(seed=seed)
    torch.manual_seed(seed)
    model = resnet(8, channels=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(train, batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(seed))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
    with compress_activations(model, ActivationSettings(bits=bits)):
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                schedule.step()
    images, labels = test[:]
    with torch.no_grad():
        return float((model.eval()(images).argmax(1) == labels).float().mean())


def within_spread(candidate: list[float], reference: list[float]) -> bool:
    """Say whether the mean is not below what the reference's own seeds reach."""
    return statistics.mean(candidate) >= min(reference)


def judged(value: float, *, must: float, towards: float, at_least: bool) -> tuple[bool, str]:
    """Return whether a bar was missed, and the words for it."""
    missed = value < must if at_least else value > must
    word = ">=" if at_least else "<="
    return missed, f"(must {word} {must:g}, towards {towards:g}){'  MISSED' if missed else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [f"kernels: {kernels_in_use()}; CPU time, medians of {options.rounds}, one thread"]
    results: dict[str, dict[str, float] | dict[str, list[float]]] = {}
    any_missed = False
    for name, (width, batch) in SIZES.items():
        results[name] = got = measure_step(width, batch, rounds=options.rounds)
        few, bytes_words = judged(got["ratio2"], must=MUST_RATIO, towards=TOWARDS_RATIO, at_least=True)
        slow, time_words = judged(got["time2"], must=MUST_TIME, towards=TOWARDS_TIME, at_least=False)
        any_missed |= few or slow
        lines += [
            f"{name}: fp32 step {got['plain_ms']:.1f} ms, saves {got['bytes_before'] / 1e6:.1f} MB",
            f"  act2 {got['ratio2']:5.2f} x fewer bytes {bytes_words}",
            f"       {got['time2']:5.2f} x the time     {time_words}",
            *(f"  act{b} {got[f'ratio{b}']:5.2f} x fewer bytes, {got[f'time{b}']:.2f} x the time" for b in (4, 8)),
        ]
    accuracies: dict[int, list[float]] = {
        bits: [accuracy(bits, seed=seed, epochs=options.epochs) for seed in range(options.seeds)] for bits in (32, 4, 2)
    }
    low = not within_spread(accuracies[4], accuracies[32])
    any_missed |= low
    results["digits"] = {f"act{bits}" if bits < 32 else "fp32": values for bits, values in accuracies.items()}
    lines.append(f"accuracy on digits, {options.seeds} seeds")
    for name, values in results["digits"].items():
        bar = "  (must: the mean within the seeds of fp32)" if name == "act4" else ""
        bar += "  MISSED" if name == "act4" and low else ""
        lines.append(f"  {name} mean {statistics.mean(values):.3f}, from {min(values):.3f} to {max(values):.3f}{bar}")
    print(json.dumps({"compressed_activations": results}) if options.json else "\n".join(lines))
    return int(any_missed)


if __name__ == "__main__":
    sys.exit(main())
