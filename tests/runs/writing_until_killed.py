"""Writes runs until it is killed: for each folder named on stdin it forks a writer and prints the writer's pid.

After each finished flush the writer adds a byte to `FOLDER.flushed`. Nothing heavier than the room is imported, and
only once, so that a test can afford many deaths.
"""

import os
import sys
from pathlib import Path

import numpy as np

from roundoff.runs import Call, EventColumns, HashColumns, Interned, Metrics, RunInfo, RunWriter, StepDetail

NUM_ROWS = 300


def events(step: int) -> EventColumns:
    zeros = np.zeros(NUM_ROWS, dtype=np.int64)
    numbers = np.random.default_rng(step).standard_normal(NUM_ROWS)
    name = Interned.constant(f"blocks.{step}", NUM_ROWS)
    return EventColumns(
        step=zeros + step, microbatch=zeros, phase=name, site=name, op=name, nth=zeros, output=name, order=zeros,
        dtype=name, shape=Interned.constant("8", NUM_ROWS), device=name, num_elements=zeros, min=numbers, max=numbers,
        mean=numbers, sum_abs=numbers, l2=numbers, num_nan=zeros, num_posinf=zeros, num_neginf=zeros, num_zero=zeros,
        num_subnormal=zeros, hash=zeros, sketch=np.zeros((NUM_ROWS, 16), dtype=np.float32),
    )  # fmt: skip


def hashes(step: int) -> HashColumns:
    return HashColumns(
        step=np.array([step]),
        microbatch=np.array([0]),
        kind=Interned.constant("input", 1),
        name=Interned.constant("0", 1),
        hash=np.array([step]),
    )


def write_forever(folder: Path) -> None:
    writer = RunWriter.create(folder, RunInfo(), strict=True)
    flushed = os.open(f"{folder}.flushed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = 0
    while True:
        writer.write_events(events(step))
        writer.write_hashes(hashes(step))
        writer.write(Metrics(step=step, loss=1.0))
        writer.write(Call(step=step, call="step", detail=StepDetail(optimizer="x" * 200)))
        with writer.tensors(step) as tensors:
            tensors.add("a", np.full(20_000, step, dtype=np.float32), dtype="F32", shape=(20_000,))
        writer.note(f"step {step}")
        writer.flush()
        os.write(flushed, b".")
        step += 1


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            write_forever(Path(line.strip()))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
