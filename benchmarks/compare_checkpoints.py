"""How long two checkpoints of 1 GB each take to be paired and compared, against reading the two files.

python benchmarks/compare_checkpoints.py [--megabytes 1000] [--repeats 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.compare.checkpoints.checkpoint_comparison import compare_checkpoints

MUST_SECONDS = 4.0
TOWARDS_READS = 1.5
WIDTH = 1024
PIECE = 1 << 24


def parameters(megabytes: int) -> dict[str, Tensor]:
    """Return the blocks of a transformer of this many megabytes."""
    state = {"embed.weight": torch.randn(8 * WIDTH, WIDTH)}
    block = {"attn.qkv": 3, "attn.out": 1, "mlp.fc1": 4, "mlp.fc2": 4}
    for number in range(max(1, round((megabytes * 1e6 / 4 / WIDTH**2 - 8) / 12))):
        for name, times in block.items():
            shape = (WIDTH, times * WIDTH) if name == "mlp.fc2" else (times * WIDTH, WIDTH)
            state[f"blocks.{number}.{name}.weight"] = torch.randn(shape)
            state[f"blocks.{number}.{name}.bias"] = torch.randn(shape[0])
    return state


def read_whole(*paths: Path) -> None:
    buffer = bytearray(PIECE)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def compare(reference: Path, candidate: Path) -> None:
    with read_checkpoint(reference) as ours, read_checkpoint(candidate) as theirs:
        compare_checkpoints(ours, theirs)


def seconds(action: Callable[[], None], *, repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])  # the first one warms up


def own_megabytes() -> float:
    """Return the memory of this process that is no mapped file."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return float(lines["RssAnon"].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.pth" for name in ("reference", "equal", "moved", "renamed")}
        state = parameters(options.megabytes)
        torch.save(state, paths["reference"])
        torch.save(state, paths["equal"])
        torch.save({name: value + 0.01 * torch.randn(value.shape) for name, value in state.items()}, paths["moved"])
        torch.save({f"model.h{name.removeprefix('blocks')}": v for name, v in state.items()}, paths["renamed"])
        megabytes = paths["reference"].stat().st_size / 1e6
        del state
        reading = seconds(lambda: read_whole(paths["reference"], paths["equal"]), repeats=options.repeats)
        before = own_megabytes()
        taken = {
            name: seconds(lambda name=name: compare(paths["reference"], paths[name]), repeats=options.repeats)
            for name in ("equal", "moved", "renamed")
        }
        grown = own_megabytes() - before
    missed = max(taken.values()) > MUST_SECONDS * megabytes / 1000
    if options.json:
        print(json.dumps({"compare_checkpoints": {"seconds": taken, "reading_seconds": reading, "grown_mb": grown}}))
        return int(missed)
    print(f"two checkpoints of {megabytes:.0f} MB; reading both takes {reading:.2f} s (in the file cache)")
    for name, value in taken.items():
        print(
            f"{name:8} {value:.2f} s (must {MUST_SECONDS * megabytes / 1000:.1f}), {value / reading:.2f} x reading "
            f"(towards {TOWARDS_READS})"
        )
    print(f"memory of its own grew by {grown:.0f} MB{'   MISSED' if missed else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
