"""What one summary costs, hash and sketch included: CPU time of `summarize` against `sum()` of the same fp32 tensor.

python benchmarks/summarize.py [--repeats 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from roundoff.kernels import kernels_in_use
from roundoff.kernels import row as columns
from roundoff.kernels.summaries import summarize_at

SHAPES = {
    "1k, vector": (1_000,),
    "1k, matrix": (10, 100),
    "100k, vector": (100_000,),
    "100k, matrix": (100, 1_000),
    "100k, pictures": (4, 100, 10, 25),
    "10M, vector": (10_000_000,),
    "10M, matrix": (10_000, 1_000),
    "10M, pictures": (40, 1_000, 10, 25),
}
MUST_MICROSECONDS = {"1k": 5.0, "100k": 60.0}
MUST_SUMS = 3.0
"""How many times `sum()` ten million elements may cost."""


def cpu_seconds(action: Callable[[], object], *, calls: int) -> float:
    """Return the CPU time of one call."""
    began = time.process_time()
    for _ in range(calls):
        action()
    return (time.process_time() - began) / calls


def measure(shape: tuple[int, ...], *, repeats: int) -> dict[str, float]:
    """Time the two in turn, so that both see the same noise."""
    x = torch.randn(shape)
    row = np.empty(columns.ROW_WIDTH)
    address = row.ctypes.data

    def summarize() -> None:
        assert summarize_at(x, address)

    calls = max(2, min(5_000, 20_000_000 // x.numel()))
    ours, theirs = [], []
    for _ in range(repeats + 1):
        ours.append(cpu_seconds(summarize, calls=calls))
        theirs.append(cpu_seconds(x.sum, calls=calls))
    summary, sum_ = statistics.median(ours[1:]), statistics.median(theirs[1:])  # the first ones warm up
    return {"summary_us": summary * 1e6, "sum_us": sum_ * 1e6, "sums": summary / sum_}


def judge(name: str, got: dict[str, float]) -> tuple[float, float, str]:
    """Return what was measured, what it must not exceed, and their unit."""
    must = MUST_MICROSECONDS.get(name.partition(",")[0])
    return (got["sums"], MUST_SUMS, "x sum()") if must is None else (got["summary_us"], must, "us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    repeats = max(7, options.repeats)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not summarize_at(torch.ones(1), np.empty(columns.ROW_WIDTH).ctypes.data):
        print(f"The kernels in use are {kernels_in_use()}: there is nothing to measure.", file=sys.stderr)
        return 2
    if not options.json:
        print(f"kernels: {kernels_in_use()}; CPU time, medians of {repeats}, one thread")
    results, missed = {}, False
    for name, shape in SHAPES.items():
        results[name] = got = measure(shape, repeats=repeats)
        value, must, unit = judge(name, got)
        missed |= value > must
        if not options.json:
            print(
                f"{name:15}{value:8.2f} {unit} (must {must:g}, towards {must / 2:g});"
                f" summary {got['summary_us']:.1f} us, sum() {got['sum_us']:.1f} us"
                f"{'  MISSED' if value > must else ''}"
            )
    if options.json:
        print(json.dumps({"summarize": results}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
