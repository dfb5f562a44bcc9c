"""The names inside a run folder, and the version of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from roundoff.errors import RunFolderError

VERSION = 2
"""The version of the folder this code writes, and the newest it reads."""

READABLE_BY = 1
"""The oldest version whose readers understand what this code writes."""

INFO_NAME = "run.json"
FINDINGS_NAME = "findings.json"
PROBES_NAME = "probes.jsonl"

_PART = re.compile(r"rank(\d+)-part-(\d+)\.parquet")
_TENSORS = re.compile(r"rank(\d+)-step(\d+)\.safetensors")
_BATCH = re.compile(r"rank(\d+)-batch-(\d+)\.safetensors")
_LINES = re.compile(r"(?:metrics|calls|anomalies|memory|structure|inputs)-rank(\d+)\.jsonl")
_ENDING = re.compile(r"ending-rank(\d+)\.json")
_REPLAY = re.compile(r"step(\d+)")


def metrics_path(folder: Path, *, rank: int) -> Path:
    """Return where one line per step goes."""
    return folder / f"metrics-rank{rank}.jsonl"


def calls_path(folder: Path, *, rank: int) -> Path:
    """Return where the calls of the loop go."""
    return folder / f"calls-rank{rank}.jsonl"


def anomalies_path(folder: Path, *, rank: int) -> Path:
    """Return where the anomalies go that were seen while training."""
    return folder / f"anomalies-rank{rank}.jsonl"


def structure_path(folder: Path, *, rank: int) -> Path:
    """Return where it goes what the training is made of."""
    return folder / f"structure-rank{rank}.jsonl"


def inputs_path(folder: Path, *, rank: int) -> Path:
    """Return where it goes what came into the steps from outside."""
    return folder / f"inputs-rank{rank}.jsonl"


def memory_path(folder: Path, *, rank: int) -> Path:
    """Return where it goes how memory grew."""
    return folder / f"memory-rank{rank}.jsonl"


def replay_info_path(folder: Path, *, rank: int) -> Path:
    """Return where, in the folder of a replayed step, it says how the replay went."""
    return folder / f"replay-rank{rank}.json"


def origin_path(folder: Path, *, rank: int) -> Path:
    """Return where, in the folder of a replayed step, the op is described that made the first bad value."""
    return folder / f"origin-rank{rank}.json"


def origin_tensors_path(folder: Path, *, rank: int) -> Path:
    """Return where that op's inputs and results are."""
    return folder / f"origin-rank{rank}.safetensors"


def batch_of_replay_path(folder: Path, *, rank: int) -> Path:
    """Return where, in the folder of a replayed step, the tensors are that came into it from outside."""
    return folder / f"batch-rank{rank}.safetensors"


def state_path(folder: Path, *, rank: int) -> Path:
    """Return where, in the folder of a replayed step, the state before it is."""
    return folder / f"state-rank{rank}.safetensors"


def tape_path(folder: Path, *, rank: int) -> Path:
    """Return where, in the folder of a replayed step, it says what the loop did, to be done again."""
    return folder / f"tape-rank{rank}.json"


def part_path(folder: Path, table: str, *, rank: int, part: int) -> Path:
    """Return the name of one part of a table.

    >>> part_path(Path("runs/a"), "events", rank=0, part=7).as_posix()
    'runs/a/events/rank0-part-00007.parquet'
    """
    return folder / table / f"rank{rank}-part-{part:05d}.parquet"


def tensors_path(folder: Path, *, rank: int, step: int) -> Path:
    """Return where the whole tensors of one step go."""
    return folder / "tensors" / f"rank{rank}-step{step}.safetensors"


def batch_path(folder: Path, *, rank: int, index: int) -> Path:
    """Return where one of the first batches goes."""
    return folder / "batches" / f"rank{rank}-batch-{index:05d}.safetensors"


def replay_path(folder: Path, *, step: int) -> Path:
    """Return the folder of a replayed step; it holds a run folder of its own."""
    return folder / "replay" / f"step{step}"


def perturbed_path(folder: Path, *, step: int) -> Path:
    """Return the folder of a step that was replayed with its parameters moved by a rounding; a run folder, too."""
    return folder / "perturbed" / f"step{step}"


def flight_path(folder: Path, *, rank: int) -> Path:
    """Return where the ring of what was running is mapped."""
    return folder / f"flight-rank{rank}.bin"


def crash_path(folder: Path, *, rank: int) -> Path:
    """Return where the stacks of a crash go."""
    return folder / f"crash-rank{rank}.txt"


def native_crash_path(folder: Path, *, rank: int) -> Path:
    """Return where the native stacks of a crash go."""
    return folder / f"crash-native-rank{rank}.txt"


def memcheck_path(folder: Path) -> Path:
    """Return where valgrind's memcheck writes what it saw, in its own XML."""
    return folder / "memcheck.xml"


def ending_path(folder: Path, *, rank: int) -> Path:
    """Return where it says how the process ended."""
    return folder / f"ending-rank{rank}.json"


def parts(folder: Path, table: str) -> list[tuple[int, int, Path]]:
    """Return (rank, part, path) of every finished part of a table, in that order."""
    return sorted(_find_numbered(folder / table, _PART))


def tensor_files(folder: Path) -> list[tuple[int, int, Path]]:
    """Return (rank, step, path) of every file of whole tensors, in that order."""
    return sorted(_find_numbered(folder / "tensors", _TENSORS))


def batch_files(folder: Path) -> list[tuple[int, int, Path]]:
    """Return (rank, index, path) of every kept batch, in that order."""
    return sorted(_find_numbered(folder / "batches", _BATCH))


def replayed_steps(folder: Path) -> list[int]:
    """Return the steps that were replayed."""
    return sorted(int(match[1]) for match, _ in _find_matching(folder / "replay", _REPLAY))


def ranks_with_files(folder: Path) -> set[int]:
    """Return every rank that has left a file."""
    found = {int(match[1]) for pattern in (_LINES, _ENDING) for match, _ in _find_matching(folder, pattern)}
    for table in ("events", "parameters", "hashes"):
        found |= {rank for rank, _, _ in parts(folder, table)}
    return found | {rank for rank, _, _ in tensor_files(folder)}


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Return the finished files that a rank writes, other than the parts of tables; rank 0 writes those of the run."""
    own = [metrics_path(folder, rank=rank), calls_path(folder, rank=rank), anomalies_path(folder, rank=rank)]
    own += [f(folder, rank=rank) for f in (memory_path, structure_path, inputs_path)]
    if rank == 0:
        own += [folder / INFO_NAME, folder / PROBES_NAME]
    found = [path for of_rank, _, path in (*tensor_files(folder), *batch_files(folder)) if of_rank == rank]
    return [path for path in own if path.exists()] + found


def next_free_name(base: Path | str, stem: str) -> Path:
    """Make the folder of the next run, `base/stem-3` after `base/stem-2`, and return it.

    It is made, empty, so that two trainings started together get two names. The numbers of removed runs in
    between are not used again: a higher number is a later run.
    """
    base = Path(base)
    taken = re.compile(re.escape(stem) + r"-(\d+)")
    try:
        base.mkdir(parents=True, exist_ok=True)
        number = max((int(match[1]) for match, _ in _find_matching(base, taken)), default=0) + 1
        while not _try_make(base / f"{stem}-{number}"):
            number += 1
    except OSError as error:
        raise unwritable_error(base, error) from error
    return base / f"{stem}-{number}"


def unwritable_error(folder: Path, error: OSError) -> RunFolderError:
    """Say that no run can be written there."""
    return RunFolderError.explain(
        f"No run can be written to '{folder}'.",
        why=f"{error.filename}: {error.strerror}.",
        fix="name a folder on a disk that can be written to.",
    )


def _try_make(folder: Path) -> bool:
    """Make a folder, or return False if the name is taken."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _find_numbered(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, Path]]:
    return ((int(match[1]), int(match[2]), path) for match, path in _find_matching(folder, pattern))


def _find_matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Path]]:
    if folder.is_dir():
        for path in folder.iterdir():
            if match := pattern.fullmatch(path.name):
                yield match, path
