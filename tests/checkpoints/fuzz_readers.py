"""Throws broken checkpoints at the readers: each must be read or refused, quickly, in little memory, and nothing else.

    python -m tests.checkpoints.fuzz_readers --cases 50000 --seed 1

The tests run a few thousand cases of it; `--only ms_` keeps to samples whose names hold that text. A process of its own
looks into HDF5, some ten times a second, so files of Keras get one case in fifty.
"""

from __future__ import annotations

import argparse
import collections
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import write_samples

MAX_SECONDS = 5.0
"""Of computing, in this process; the process that looks into HDF5 has a limit of its own."""
MAX_GROWTH_MB = 300
HDF5_SHARE = 50

EXTREMES = [
    *(value.to_bytes(8, "little") for value in (0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)),
    *(value.to_bytes(4, "big") for value in (1, 2**16, 2**31 - 1, 2**32 - 1)),
    b"\xff",
    b"\x00",
    b"\x80",
    b"cposix\nsystem\n",
    b"nan",
]


MARKS = (b"data.pkl", b"PK\x01\x02", b"PK\x05\x06", b"NUMPY", b"\x80\x02}", b"ctorch", b"TREE", b"SNOD", b"HEAP")


def mutated(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Return the bytes with one to eight changes, of the kinds that broken disks and hostile people make."""
    changed = bytearray(data)
    marked = [place for mark in MARKS for place in [data.find(mark)] if place >= 0]
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        place = chance.randrange(len(changed) + 1)
        if chance.random() < 0.6:  # headers, pickles and the directories of zips are where it hurts
            place = chance.choice([place % 300, len(changed) - 1 - place % 300, *(at + place % 600 for at in marked)])
        place = min(max(0, place), len(changed))
        length = chance.choice([1, 2, 8, 100])
        match chance.randrange(8):
            case 0 | 1 if place < len(changed):
                changed[place] ^= 1 << chance.randrange(8)
            case 2 if place < len(changed):
                changed[place] = chance.randrange(256)
            case 3:
                value = chance.choice(EXTREMES)
                changed[place : place + len(value)] = value
            case 4:
                del changed[place : place + length]
            case 5:
                changed[place:place] = changed[place : place + length]
            case 6:
                other = chance.choice(others)
                begin = chance.randrange(len(other))
                changed[place : place + length] = other[begin : begin + length]
            case 7 if chance.random() < 0.3:
                del changed[place:]
    return bytes(changed)


def outcome(path: Path) -> str:
    """Open a checkpoint and read every tensor of it; say how that ended. Anything but a `CheckpointError` escapes."""
    refusal = None
    try:
        with read_checkpoint(path) as checkpoint:
            for name, entry in checkpoint.entries.items():
                tensor = checkpoint.tensor(name)
                assert tuple(tensor.shape) == entry.shape
                assert str(tensor.dtype) == f"torch.{entry.dtype}"
                assert name.isprintable()
    except CheckpointError as error:
        refusal = str(error)
    if refusal is None:
        return "read"
    assert "  why: " in refusal
    assert all(line.isprintable() for line in refusal.split("\n"))
    return "refused"


def targets(samples: dict[str, Path], only: str) -> list[tuple[Path, Path]]:
    """List what to open, and which file of it to change."""
    found = []
    for name, path in samples.items():
        files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.stat().st_size][:3]
        found += [(path, file) for file in files if only in name]
    return found


def fuzz(*, num_cases: int, seed: int, only: str = "", show: bool = False) -> collections.Counter[str]:
    """Run this many cases and count how they ended; an `AssertionError` names the case that was slow or grew."""
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        listed = targets(write_samples(Path(folder)), only)
        originals = {file: file.read_bytes() for _, file in listed}
        quick = [target for target in listed if not _is_hdf5(target[1])]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for case in range(num_cases):
            chance = random.Random(f"{seed} {case}")
            path, file = chance.choice(quick if quick and chance.randrange(HDF5_SHARE) else listed)
            file.write_bytes(mutated(originals[file], chance, list(originals.values())))
            begin = time.process_time()
            try:
                ended = outcome(path)
            except BaseException as error:
                error.add_note(f"seed {seed}, case {case}: {path.name}/{file.name}")
                raise
            seconds = time.process_time() - begin
            file.write_bytes(originals[file])
            counts[f"{path.name}: {ended}"] += 1
            assert seconds < MAX_SECONDS, (seed, case, path.name, seconds)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
            assert grown < MAX_GROWTH_MB, (seed, case, path.name, grown)
            if show and case % 1000 == 999:
                print(f"{case + 1} cases, {grown:.0f} MB more", flush=True)
    return counts


def _is_hdf5(file: Path) -> bool:
    return file.name.endswith((".h5", ".keras"))


def main() -> None:
    """Fuzz as the arguments say, and print how the cases ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    counts = fuzz(num_cases=arguments.cases, seed=arguments.seed, only=arguments.only, show=True)
    for name, count in sorted(counts.items()):
        print(f"{count:7} {name}")
    print(f"{counts.total()} cases in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
