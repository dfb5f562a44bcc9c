"""What it costs to compare a run on one rank with one on many: simulated folders of up to 1,000 ranks.

    python benchmarks/compare_layouts.py [--ranks 1000] [--tp 8] [--layers 12] [--megabytes 100] [--folder DIR]

Each rank's folder has the events that `roundoff record` writes for a step: parameters, gradients, inputs, and the
results of forward and backward. Neighbours in groups of `--tp` hold parts of the same weights; the groups share the
batch. In one more folder the gradients of one rank are twice as large.

Then whole tensors: a run on one rank against one on eight, with tensors of `--megabytes` each, which all differ by
rounding, and the same tensors of one rank against one rank. A byte of the eight may cost no more than one of the pair.
"""

from __future__ import annotations

import argparse
import functools
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from roundoff.compare.layouts.layout_comparison import compare_layouts
from roundoff.compare.layouts.rank_mesh import RankMesh
from roundoff.compare.tensors.tensor_comparison import compare_tensors
from roundoff.compare.tensors.tensor_files import tensors_of_step
from roundoff.runs import EventColumns, HashColumns, Interned, Metrics, Run, RunInfo, RunWriter

DIM, BATCH, OTHER_RESULTS = 32, 1000, 30
WIDE = 1024
"""The width of the weights whose tensors are kept."""
MUST_RATIO = 1.0


def main() -> int:
    """Write the folders, compare them, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="roundoff-layouts-"))
    mesh = RankMesh({"dp": options.ranks // options.tp, "tp": options.tp})
    try:
        began = time.perf_counter()
        write_run(folder / "one", RankMesh({"dp": 1, "tp": 1}), options.layers)
        write_run(folder / "many", mesh, options.layers)
        write_run(folder / "scaled", mesh, options.layers, factor=2.0)
        wrote = time.perf_counter() - began
        size = sum(path.stat().st_size for path in (folder / "many").rglob("*") if path.is_file())
        print(f"{mesh.num_ranks} ranks, {2 * options.layers} parameters: {size / 1e6:.0f} MB, written in {wrote:.0f} s")
        for name in ("many", "scaled"):
            began, cpu = time.perf_counter(), time.process_time()
            found = compare_layouts(Run.open(folder / "one"), Run.open(folder / name), mesh=mesh)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            verdict = found.faults[0].title if found.faults else "silent"
            print(
                f"{name}: {seconds:.1f} s, {cpu:.1f} s of CPU, events of {found.num_read} ranks read, "
                f"{found.num_equal} of {len(found.rows)} equal: {verdict}"
            )
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
        return int(not compare_bytes(folder, num_bytes=options.megabytes * 10**6))
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def compare_bytes(folder: Path, *, num_bytes: int) -> bool:
    """Compare whole tensors of one rank with those of one and of eight, and say whether a byte costs the same."""
    rows, num_layers = 4096, max(1, num_bytes // (2 * 4096 * WIDE * 4))
    runs = {"whole": 1, "other": 1, "eight": 8}
    for name, tp in runs.items():
        mesh = RankMesh({"dp": 1, "tp": tp})
        factor = 1.0 if name == "whole" else 1 + 1e-6
        write_run(folder / name, mesh, num_layers, factor=factor, shape=(rows, WIDE), has_tensors=True)
    opened = {name: Run.open(folder / name) for name in runs}
    size = sum(path.stat().st_size for path in (folder / "whole" / "tensors").iterdir()) / 1e6
    compare_tensors(*(tensors_of_step(opened["whole"], 0) for _ in range(2)))  # imports
    begins = [time.process_time()]
    compare_tensors(*(tensors_of_step(opened[name], 0) for name in ("whole", "other")))
    begins.append(time.process_time())
    found = compare_layouts(opened["whole"], opened["eight"], mesh=RankMesh({"tp": 8}))
    begins.append(time.process_time())
    assert not found.faults, found.faults
    assert found.num_equal == len(found.rows), found.rows
    pair, eight = np.diff(begins)
    print(
        f"2 x {size:.0f} MB of tensors: {pair:.2f} s of CPU for one rank and one, {eight:.2f} s for one and eight, "
        f"{eight / pair:.2f} x (must {MUST_RATIO:g})"
    )
    return bool(eight <= MUST_RATIO * pair)


def write_run(
    folder: Path, mesh: RankMesh, num_layers: int, *, factor: float = 1.0, shape: tuple[int, int] = (256, 32),
    has_tensors: bool = False,
) -> None:  # fmt: skip
    """Write a run of a step whose weights are divided over tp and whose batch over dp."""
    generator = np.random.default_rng(0)
    layers = range(num_layers)
    weights = {f"{i}.weight": generator.standard_normal(shape, dtype=np.float32) for i in layers}
    weights |= {f"{i}.norm": generator.standard_normal(DIM, dtype=np.float32) for i in layers}
    gradients = {name: generator.standard_normal(value.shape, dtype=np.float32) for name, value in weights.items()}
    batch = generator.standard_normal((BATCH, DIM))
    for rank in range(mesh.num_ranks):
        place = mesh.coordinates(rank)
        writer = RunWriter.create(folder, RunInfo(ranks=mesh.num_ranks), rank=rank)
        rows: list[tuple[str, str, str, np.ndarray]] = []
        for op, values in (("parameter", weights), ("gradient", gradients)):
            for name, value in values.items():
                part = np.array_split(value, mesh.sizes["tp"])[place["tp"]] if value.ndim > 1 else value
                rows.append((op, name.partition(".")[0], name, part * (factor if op == "gradient" else 1.0)))
        rows.append(("input", "<model>", "", np.array_split(batch, mesh.sizes["dp"])[place["dp"]]))
        if has_tensors:
            write_tensors(writer, rows)
        else:
            rows += [("aten.mm", "0", "", np.ones((4, 4))) for _ in range(OTHER_RESULTS * num_layers)]
        write_events(writer, rows)
        writer.write(Metrics(step=0, loss=1.0))
        writer.close(status="finished")


def write_tensors(writer: RunWriter, rows: list[tuple[str, str, str, np.ndarray]]) -> None:
    """Write the values of each row, under the names that a recording gives them."""
    counts: Counter[tuple[str, str]] = Counter()
    with writer.tensors(0) as file:
        for op, site, _, value in rows:
            phase = "backward" if op == "gradient" else "forward"
            key = f"{phase}/0/{site}/{op}#{counts[op, site]}:output0"
            file.add(key, np.ascontiguousarray(value, dtype=np.float32), dtype="F32", shape=value.shape)
            counts[op, site] += 1


def write_events(writer: RunWriter, rows: list[tuple[str, str, str, np.ndarray]]) -> None:
    """Write one row for each tensor, and the hashes of those that have names."""
    num = len(rows)
    values = [value for *_, value in rows]
    hashes = np.array([hash(value.tobytes()) % 2**63 for value in values], dtype=np.uint64)
    counts: dict[tuple[str, str], int] = {}
    nth = []
    for op, site, *_ in rows:
        nth.append(counts.get((op, site), 0))
        counts[op, site] = nth[-1] + 1
    zeros = np.zeros(num, dtype=np.int64)
    parameters = [name or None for _, _, name, _ in rows]
    known = [name for name in dict.fromkeys(parameters) if name]
    writer.write_events(
        EventColumns(
            step=np.zeros(num, dtype=np.int32),
            microbatch=np.zeros(num, dtype=np.int16),
            phase=Interned.of(["backward" if op == "gradient" else "forward" for op, *_ in rows]),
            site=Interned.of([site for _, site, *_ in rows]),
            op=Interned.of([op for op, *_ in rows]),
            nth=np.array(nth, dtype=np.int32),
            output=Interned.of(["output0"] * num),
            order=np.arange(num, dtype=np.int32),
            parameter=Interned(
                codes=np.array([-1 if name is None else known.index(name) for name in parameters]), values=known
            ),
            source=Interned(codes=np.full(num, -1), values=[]),
            dtype=Interned.of(["float32"] * num),
            shape=Interned.of(["x".join(map(str, value.shape)) for value in values]),
            device=Interned.of(["cpu"] * num),
            num_elements=np.array([value.size for value in values]),
            min=np.array([value.min() for value in values]),
            max=np.array([value.max() for value in values]),
            mean=np.array([value.mean() for value in values]),
            sum_abs=np.array([abs(value).sum() for value in values]),
            l2=np.array([np.linalg.norm(value) for value in values]),
            num_nan=zeros,
            num_posinf=zeros,
            num_neginf=zeros,
            num_zero=zeros,
            num_subnormal=zeros,
            hash=hashes,
            sketch=np.array([sketch(value) for value in values], dtype=np.float32),
        )
    )
    named = [i for i, (op, *_) in enumerate(rows) if op in ("parameter", "gradient", "input")]
    writer.write_hashes(
        HashColumns(
            step=np.zeros(len(named), dtype=np.int32),
            microbatch=np.zeros(len(named), dtype=np.int16),
            kind=Interned.of([rows[i][0] for i in named]),
            name=Interned.of([rows[i][2] or "<model>[0]" for i in named]),
            hash=hashes[named],
        )
    )


def sketch(value: np.ndarray) -> np.ndarray:
    """Return sums with random signs that depend on the place only; none for large tensors, whose values are kept."""
    if value.size > 10**5:
        return np.zeros(16)
    return np.asarray(signs_of(value.size) @ value.ravel())


@functools.cache
def signs_of(size: int) -> np.ndarray:
    """Return 16 signs for each place."""
    return np.random.default_rng(size).choice([-1.0, 1.0], (16, size))


if __name__ == "__main__":
    sys.exit(main())
