"""How long two runs with whole tensors take to compare: 2 x 650 MB that all differ, against reading the bytes.

Each measurement is made in a process of its own: peak memory is that of comparing, with torch and without the writing.

python benchmarks/compare_tensors.py [--megabytes 650] [--repeats 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MUST_SECONDS, TOWARDS_SECONDS = 5.0, 2.0
MUST_MEGABYTES = 600.0
SHAPES = [(8, 1024, 768), (8, 1024, 3072), (8, 12, 1024, 64), (3072, 768), (768,), (8, 1024, 50)]
"""What a step of a GPT keeps, over and over."""


def write_run(folder: Path, *, num_bytes: int, factor: float) -> None:
    """Write one step of fp32 tensors that add up to `num_bytes`."""
    from roundoff.runs import RunInfo, RunWriter

    generator = np.random.default_rng(0)
    with RunWriter.create(folder, RunInfo()) as writer, writer.tensors(0) as file:
        written, nth = 0, 0
        while written < num_bytes:
            shape = SHAPES[nth % len(SHAPES)]
            values = generator.standard_normal(shape, dtype=np.float32) * np.float32(factor)
            file.add(f"forward/0/blocks.{nth}/aten.addmm#0:output0", values, dtype="F32", shape=shape)
            written, nth = written + values.nbytes, nth + 1


def compare(reference: Path, candidate: Path) -> dict[str, float]:
    """Compare in this process: seconds, and the peak of its memory."""
    from roundoff.compare.tensors.tensor_comparison import compare_tensors
    from roundoff.compare.tensors.tensor_files import tensors_of_step
    from roundoff.runs import Run

    began, cpu = time.perf_counter(), time.process_time()
    found = compare_tensors(*(tensors_of_step(Run.open(folder), 0) for folder in (reference, candidate)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert found.first is not None
    assert found.first == found.pairs[0]
    return {"seconds": seconds, "cpu": cpu, "megabytes": peak_megabytes(), "pairs": len(found.pairs)}


def read(*folders: Path) -> dict[str, float]:
    """Read every byte once, into one buffer."""
    buffer = bytearray(2**20)
    began, cpu = time.perf_counter(), time.process_time()
    for folder in folders:
        with (folder / "tensors" / "rank0-step0.safetensors").open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def peak_megabytes() -> float:
    """Return the most memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def in_own_process(what: str, reference: Path, candidate: Path) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--measure", what, str(reference), str(candidate)]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=650)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, *folders = options.measure
        action = {"compare": compare, "read": read}[what]
        print(json.dumps(action(*map(Path, folders))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "reference", Path(folder) / "candidate"
        for run, factor in zip(runs, (1.0, 1.001), strict=True):
            write_run(run, num_bytes=options.megabytes * 10**6, factor=factor)
        measured = [
            {what: in_own_process(what, *runs) for what in ("read", "compare")} for _ in range(max(1, options.repeats))
        ]
    ours = statistics.median(each["compare"]["seconds"] for each in measured)
    ratio = statistics.median(each["compare"]["cpu"] / each["read"]["cpu"] for each in measured)
    memory = max(each["compare"]["megabytes"] for each in measured)
    if options.json:
        print(json.dumps({"compare_tensors": {"seconds": ours, "megabytes": memory, "readings": ratio}}))
    else:
        print(
            f"2 x {options.megabytes} MB, {measured[0]['compare']['pairs']} pairs: {ours:.2f} s "
            f"(must {MUST_SECONDS:g}, towards {TOWARDS_SECONDS:g}), {ratio:.1f} x the CPU time of reading the bytes; "
            f"peak memory {memory:.0f} MB (must {MUST_MEGABYTES:g})"
        )
    return int(ours > MUST_SECONDS or memory > MUST_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
