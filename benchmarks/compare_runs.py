"""How long it takes to compare two recorded steps of a GPT, once everything is imported; must 1 s, towards 0.3 s.

The candidate computes in bf16, so that hardly any tensor is equal.

python benchmarks/compare_runs.py [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from models import gpt_step
from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.record import recording
from roundoff.runs import Run

MUST_SECONDS = 1.0


def main() -> None:
    """Record one step twice, compare it several times, and print the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reference, candidate = (record(Path(folder) / name, name == "bf16") for name in ("fp32", "bf16"))
        times = []
        for _ in range(arguments.rounds):
            began = time.process_time()
            comparison = compare_runs(reference, candidate)
            times.append(time.process_time() - began)
    assert comparison.divergence is None, comparison.divergence
    seconds = statistics.median(times)
    misses = seconds > MUST_SECONDS
    if arguments.json:
        print(json.dumps({"seconds": seconds, "tensors": len(comparison.rows)}))
    else:
        print(
            f"two steps of a GPT, {len(comparison.rows)} tensors: {seconds:.2f} s; must {MUST_SECONDS:g}, towards 0.3"
        )
    sys.exit(1 if misses else 0)


def record(folder: Path, is_narrow: bool) -> Run:
    """Record a step of the GPT with the inputs of every op, as `roundoff run` does."""
    model, step = gpt_step()
    with (
        recording(model, to=folder, steps=[0], inputs=True, stacks=True),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_narrow),
    ):
        step()
    return Run.open(folder)


if __name__ == "__main__":
    main()
