"""What recording a step costs: CPU time of a recorded step against the plain one, and bytes on disk.

python benchmarks/record_step.py [--level summary|tensors] [--reference fp64] [--json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from models import STEPS
from roundoff.record import recording
from roundoff.runs import Run

MUST = {
    "summary": {"ResNet": 1.4, "GPT": 1.7},
    "tensors": {"ResNet": 3.0, "GPT": 3.0},
    "fp64": {"ResNet": 10.0, "GPT": 10.0},
}
TOWARDS = {
    "summary": {"ResNet": 1.15, "GPT": 1.25},
    "tensors": {"ResNet": 2.0, "GPT": 2.0},
    "fp64": {"ResNet": 5.0, "GPT": 5.0},
}
MUST_MEGABYTES = 0.15


def cpu_seconds(step: Callable[[], float]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def measure(name: str, *, level: str, reference: str | None, rounds: int, folder: Path) -> dict[str, float]:
    model, step = STEPS[name]()
    step()
    plain, recorded, megabytes = [], [], []
    for round_ in range(rounds):
        plain += [cpu_seconds(step) for _ in range(2)]
        run = folder / f"{name}-{round_}"
        with recording(model, to=run, level=level, reference=reference):
            cpu_seconds(step)  # the first step pays for learning the ops
            recorded += [cpu_seconds(step) for _ in range(2)]  # each writes the step before it
        if level == "summary":
            megabytes.append(sum(f.stat().st_size for f in run.rglob("*") if f.is_file()) / 3 / 1e6)
        else:
            megabytes.append(stored_megabytes(run))
        shutil.rmtree(run)
    return {
        "plain_ms": statistics.median(plain) * 1e3,
        "recorded_ms": statistics.median(recorded) * 1e3,
        "ratio": statistics.median(recorded) / statistics.median(plain),
        "megabytes_per_step": statistics.median(megabytes),
    }


def stored_megabytes(run: Path) -> float:
    """Return the bytes of whole tensors that one step has on disk; names and shapes add about 0.2 %."""
    files = [Run.open(run).tensor_file(step, rank=rank) for rank, step in Run.open(run).tensor_steps]
    sizes = [
        sum(file.entry(key).end - file.entry(key).begin for key in file if key not in file.aliases) for file in files
    ]
    return statistics.median(sizes) / 1e6 if sizes else 0.0


def computed_megabytes(name: str) -> float:
    """Add up the bytes that one step computes, views counted once, and those it starts from: parameters and batch."""
    from roundoff.record.ops.op_table import OpKind, describe_op, written_arguments
    from roundoff.record.reference.op_call import list_tensors
    from roundoff.torch_private import DispatchMode

    class Adding(DispatchMode):
        num_bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            info = describe_op(func)
            if info.kind is OpKind.RETURNED:
                self.num_bytes += sum(x.nbytes for x in list_tensors(result))
            elif info.kind is OpKind.MUTATED:
                self.num_bytes += sum(x.nbytes for x in written_arguments(func, info, args, kwargs or {}))
            return result

    model, step = STEPS[name]()
    step()
    held = sum(p.nbytes for p in model.parameters())
    batch = []
    hook = model.register_forward_pre_hook(lambda module, args: batch.extend(x.nbytes for x in args))
    with Adding() as adding:
        step()
    hook.remove()
    return (adding.num_bytes + held + sum(batch)) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="summary", choices=["summary", "tensors"])
    parser.add_argument("--reference", choices=["fp64"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = options.reference or options.level
    results, missed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        for name in STEPS:
            got = measure(
                name, level=options.level, reference=options.reference, rounds=options.rounds, folder=Path(folder)
            )
            missed |= got["ratio"] > MUST[kind][name]
            line = (
                f"{name}: {kind} {got['ratio']:.2f} x the plain step of {got['plain_ms']:.0f} ms "
                f"(must {MUST[kind][name]}, towards {TOWARDS[kind][name]}); {got['megabytes_per_step']:.3f} MB a step"
            )
            if kind == "summary":
                missed |= got["megabytes_per_step"] > MUST_MEGABYTES
                line += f" (must {MUST_MEGABYTES}, towards 0.05)"
            if kind == "tensors":
                got["computed_megabytes"] = computed_megabytes(name)
                missed |= got["megabytes_per_step"] > got["computed_megabytes"]
                line += f" of {got['computed_megabytes']:.3f} MB computed or held"
            results[name] = got
            if not options.json:
                print(line)
    if options.json:
        print(json.dumps({kind: results}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
