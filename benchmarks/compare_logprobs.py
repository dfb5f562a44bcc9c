"""How long two tables of log-probabilities take to compare: 10 million tokens each, as Parquet, npz and JSON lines.

CPU time of reading both, pairing them, and finding the cause, in a process of its own.

python benchmarks/compare_logprobs.py [--tokens 10000000] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MUST_SECONDS = 5.0
LENGTH = 1000


def write_tables(folder: Path, suffix: str, num_tokens: int) -> tuple[Path, Path]:
    """Write a trainer's table, and that of an engine in bfloat16."""
    from roundoff.compare import save_logprobs

    generator = np.random.default_rng(0)
    num_samples = num_tokens // LENGTH
    tokens = generator.integers(0, 150_000, (num_samples, LENGTH), dtype=np.int32)
    logprobs = -generator.exponential(1.0, tokens.shape).astype(np.float32)
    noise = generator.normal(0, 0.02, tokens.shape).astype(np.float32) * (1 - np.exp(logprobs))
    paths = folder / f"trainer{suffix}", folder / f"rollout{suffix}"
    for path, values in zip(paths, (logprobs, np.minimum(logprobs + noise, 0)), strict=True):
        save_logprobs(path, tokens, values, sample=np.arange(num_samples), version=3, dtype="bfloat16", layers=32)
    return paths


def compare(reference: str, candidate: str) -> dict[str, float]:
    """Compare in this process: CPU seconds, and the peak of its memory."""
    from roundoff.compare import compare_logprobs, read_logprobs

    began = time.process_time()
    found = compare_logprobs(read_logprobs(reference), read_logprobs(candidate))
    seconds = time.process_time() - began
    assert not found.differs
    status = Path("/proc/self/status").read_text()
    return {"seconds": seconds, "megabytes": int(status.split("VmHWM:")[1].split()[0]) / 1024}


def measure(suffix: str, num_tokens: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        paths = write_tables(Path(folder), suffix, num_tokens)
        command = [sys.executable, __file__, "--measure", *map(str, paths)]
        result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(compare(*options.measure)))
        return 0
    found = {suffix: measure(f".{suffix}", options.tokens) for suffix in ("parquet", "npz", "jsonl")}
    if options.json:
        print(json.dumps({"compare_logprobs": found}))
    else:
        for suffix, each in found.items():
            print(f"2 x {options.tokens} tokens, {suffix}: {each['seconds']:.1f} s CPU, {each['megabytes']:.0f} MB")
    return int(max(each["seconds"] for each in found.values()) > MUST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
