"""How much longer rounding 16M floats takes than copying them: `python benchmarks/round_to.py [--json]`.

One thread, into a given tensor, processor time; the copy and the roundings take turns, so that a busy machine slows
them alike. Ends with 1 if a figure is worse than it must be.
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

from roundoff.formats import format_named, round_to
from roundoff.kernels import kernels_in_use

SIZE = 1 << 24
ROUNDS = 15
LIMITS = {"nearest": (1.3, 1.1), "stochastic": (1.8, 1.4)}
"""What the ratio must not exceed, and where it should be."""
FORMATS = ("e4m3", "fp16", "bf16", "q1.7")


def seconds_of(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure() -> list[dict[str, object]]:
    x = torch.randn(SIZE)
    out = torch.zeros_like(x)
    works: dict[tuple[str, str], Callable[[], object]] = {("copy", ""): lambda: out.copy_(x)}
    for name in FORMATS:
        fmt = format_named(name)
        for rounding in LIMITS:
            works[name, rounding] = lambda fmt=fmt, rounding=rounding: round_to(x, fmt, rounding=rounding, out=out)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for _ in range(ROUNDS):
        for key, work in works.items():
            seconds[key].append(seconds_of(work))
    copy = statistics.median(seconds.pop(("copy", "")))
    return [
        {
            "format": name,
            "rounding": rounding,
            "ratio": round(statistics.median(times) / copy, 3),
            "must": LIMITS[rounding][0],
            "towards": LIMITS[rounding][1],
            "ns_per_element": round(statistics.median(times) / SIZE * 1e9, 3),
        }
        for (name, rounding), times in seconds.items()
    ]


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(rows, indent=1))
    else:
        print(f"round_to, {SIZE} fp32, one thread, {kernels_in_use()}; ratio to copy_ (must / towards)")
        for row in rows:
            print(
                f"  {row['format']:5} {row['rounding']:11} {row['ratio']:5.2f}  ({row['must']} / {row['towards']})"
                f"  {row['ns_per_element']} ns per element"
            )
    return int(any(row["ratio"] > row["must"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
