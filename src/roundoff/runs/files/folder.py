"""The names of the files in a run folder, and the version of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import RunFolderError
from roundoff.files import make_folder

VERSION = 2
"""The version of the folder this code writes, and the newest it reads."""

READABLE_BY = 1
"""The oldest version whose readers understand what this code writes."""


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a kind of file, called with a folder and the numbers in the name.

    >>> tensors_path(Path("runs/a"), rank=0, step=7).as_posix()
    'runs/a/tensors/rank0-step7.safetensors'
    """

    pattern: str

    def __call__(self, folder: Path, **numbers: int) -> Path:
        """Return the path of one file."""
        return folder / self.pattern.format(**numbers)

    def find(self, folder: Path) -> list[tuple[tuple[int, ...], Path]]:
        """Return the numbers and the path of every such file, in order."""
        directory, _, name = self.pattern.rpartition("/")
        expression = re.compile(re.sub(r"\\{\w+(:\w+)?\\}", r"(\\d+)", re.escape(name)))
        return sorted(
            (tuple(map(int, match.groups())), path) for match, path in _find_matching(folder / directory, expression)
        )


info_path = FileName("run.json")
findings_path = FileName("findings.json")
probes_path = FileName("probes.jsonl")
memcheck_path = FileName("memcheck.xml")

metrics_path = FileName("metrics-rank{rank}.jsonl")
calls_path = FileName("calls-rank{rank}.jsonl")
anomalies_path = FileName("anomalies-rank{rank}.jsonl")
memory_path = FileName("memory-rank{rank}.jsonl")
structure_path = FileName("structure-rank{rank}.jsonl")
inputs_path = FileName("inputs-rank{rank}.jsonl")
criteria_path = FileName("criteria-rank{rank}.jsonl")
lost_numbers_path = FileName("lost-numbers-rank{rank}.jsonl")
states_path = FileName("states-rank{rank}.jsonl")
placements_path = FileName("placements-rank{rank}.jsonl")
failures_path = FileName("failures-rank{rank}.jsonl")
gaps_path = FileName("gaps-rank{rank}.jsonl")
ending_path = FileName("ending-rank{rank}.json")
flight_path = FileName("flight-rank{rank}.bin")
crash_path = FileName("crash-rank{rank}.txt")
native_crash_path = FileName("crash-native-rank{rank}.txt")

tensors_path = FileName("tensors/rank{rank}-step{step}.safetensors")
batch_path = FileName("batches/rank{rank}-batch-{index:05d}.safetensors")
part_paths = {
    table: FileName(f"{table}/rank{{rank}}-part-{{part:05d}}.parquet") for table in ("events", "parameters", "hashes")
}
replay_path = FileName("replay/step{step}")
"""A replayed step: a run folder of its own. The files below are in it."""
perturbed_path = FileName("perturbed/step{step}")
"""A step that was replayed with its parameters moved by a rounding: a run folder, too."""
replay_info_path = FileName("replay-rank{rank}.json")
tape_path = FileName("tape-rank{rank}.json")
state_path = FileName("state-rank{rank}.safetensors")
replay_batch_path = FileName("batch-rank{rank}.safetensors")
origin_path = FileName("origin-rank{rank}.json")
origin_tensors_path = FileName("origin-rank{rank}.safetensors")

_OF_RANK = (
    metrics_path, calls_path, anomalies_path, memory_path, structure_path, inputs_path, criteria_path,
    lost_numbers_path, failures_path, ending_path, tensors_path, *part_paths.values(),
)  # fmt: skip
"""The files by which a rank is known to have written."""


def ranks_with_files(folder: Path) -> set[int]:
    """Return every rank that has left a file."""
    return {numbers[0] for name in _OF_RANK for numbers, _ in name.find(folder)}


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
        while not make_folder(base / f"{stem}-{number}"):
            number += 1
    except (OSError, MemoryError) as error:
        raise unwritable_error(base, error) from error
    return base / f"{stem}-{number}"


def unwritable_error(folder: Path, error: OSError | MemoryError) -> RunFolderError:
    """Return the error for a folder into which no run can be written."""
    return RunFolderError.explain(
        f"No run can be written to '{folder}'.",
        why=f"{error.filename or folder}: {error.strerror}." if isinstance(error, OSError) else "memory ran out.",
        fix="name a folder on a disk that can be written to.",
    )


def _find_matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Path]]:
    if folder.is_dir():
        for path in folder.iterdir():
            if match := pattern.fullmatch(path.name):
                yield match, path
