"""What the two things are that somebody wants to compare, and what they want to see of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from roundoff.errors import CompareError


class Kind(StrEnum):
    """The things that `roundoff compare` takes."""

    RUN = "run"
    CHECKPOINT = "checkpoint"
    CURVE = "curve"
    TENSORS = "folder of tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to show of a comparison beside its verdict."""

    as_json: bool = False
    table: bool = False
    csv: Path | None = None
    html: Path | None = None
    map_file: Path | None = None
    step: int | None = None
    rank: int | None = None
    pattern: str | None = None
    """Of a log: a regular expression with the groups `step` and `loss`."""
    column: str | None = None
    """Of curves: where the loss is."""


CURVE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".log", ".txt")
TENSOR_SUFFIXES = (".npy",)
MARKS_OF_A_CHECKPOINT = (".metadata", "model.safetensors.index.json", "pytorch_model.bin.index.json")


def split_step(text: str) -> tuple[str, int | None]:
    """Split `runs/a@3` into the folder and the step.

    >>> split_step("runs/a@3")
    ('runs/a', 3)
    >>> split_step("runs/me@home")
    ('runs/me@home', None)
    """
    path, at, step = text.rpartition("@")
    if at and step.isdecimal() and not Path(text).exists():
        return path, int(step)
    return text, None


def kind_of(text: str) -> Kind:
    """Say what somebody named; a `CompareError` if it is nothing that can be compared."""
    path = Path(split_step(text)[0])
    if not path.exists():
        raise CompareError.explain(f"There is no '{text}'.", fix="name a run, a checkpoint, a log or a folder.")
    if path.is_dir():
        return _kind_of_folder(path)
    if path.suffix in CURVE_SUFFIXES or "tfevents" in path.name:
        return Kind.CURVE
    return Kind.TENSORS if path.suffix in TENSOR_SUFFIXES else Kind.CHECKPOINT


def _kind_of_folder(path: Path) -> Kind:
    if (path / "run.json").exists():
        return Kind.RUN
    if any((path / mark).exists() for mark in MARKS_OF_A_CHECKPOINT):
        return Kind.CHECKPOINT
    if any("tfevents" in file.name for file in path.iterdir()):
        return Kind.CURVE
    return Kind.TENSORS


def write_output(path: Path, text: str) -> None:
    """Write what was asked for beside the answer; a `CompareError` says why if that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.") from error


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the header first, as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_output(path, text.getvalue())
