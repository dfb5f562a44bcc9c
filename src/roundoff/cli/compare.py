"""`roundoff compare`: where a candidate begins to differ from its reference."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from roundoff.errors import CompareError, UsageError

# == What the two things are that somebody wants to compare, and what they want to see of it.


class ComparableKind(StrEnum):
    """The things that `roundoff compare` takes."""

    RUN = "run"
    CHECKPOINT = "checkpoint"
    CURVE = "curve"
    TENSORS = "folder of tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
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
CHECKPOINT_MARKERS = (".metadata", "model.safetensors.index.json", "pytorch_model.bin.index.json")


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


def comparable_kind(text: str) -> ComparableKind:
    """Say what somebody named; a `CompareError` if it is nothing that can be compared."""
    path = Path(split_step(text)[0])
    if not path.exists():
        raise CompareError.explain(f"There is no '{text}'.", fix="name a run, a checkpoint, a log or a folder.")
    if path.is_dir():
        return comparable_kind_of_folder(path)
    if path.suffix in CURVE_SUFFIXES or "tfevents" in path.name:
        return ComparableKind.CURVE
    return ComparableKind.TENSORS if path.suffix in TENSOR_SUFFIXES else ComparableKind.CHECKPOINT


def comparable_kind_of_folder(path: Path) -> ComparableKind:
    """Return what an existing folder holds, by the files that mark each kind."""
    if (path / "run.json").exists():
        return ComparableKind.RUN
    if any((path / mark).exists() for mark in CHECKPOINT_MARKERS):
        return ComparableKind.CHECKPOINT
    if any("tfevents" in file.name for file in path.iterdir()):
        return ComparableKind.CURVE
    return ComparableKind.TENSORS


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


ANSWERS = {
    ComparableKind.RUN: "roundoff.cli.compare_runs",
    ComparableKind.CHECKPOINT: "roundoff.cli.compare_checkpoints",
    ComparableKind.CURVE: "roundoff.cli.compare_curves",
    ComparableKind.TENSORS: "roundoff.cli.compare_tensors",
}
"""Where each kind has its `answer`, which prints what was found and says whether that was anything."""

OPTIONS_FOR = {
    "--step": (ComparableKind.RUN,),
    "--rank": (ComparableKind.RUN,),
    "--pattern": (ComparableKind.CURVE,),
    "--column": (ComparableKind.CURVE,),
    "--map": (ComparableKind.RUN, ComparableKind.CHECKPOINT, ComparableKind.TENSORS),
}
"""Options that mean nothing for the other kinds."""
PLURALS = {
    ComparableKind.RUN: "runs",
    ComparableKind.CHECKPOINT: "checkpoints",
    ComparableKind.CURVE: "curves",
    ComparableKind.TENSORS: "folders of tensors",
}


@click.command("compare", epilog="Example: roundoff compare runs/fp32 runs/bf16 --table")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@click.option("--step", type=click.IntRange(min=0), help="Compare this step of two runs only.")
@click.option("--rank", type=click.IntRange(min=0), help="Compare this rank of two runs only.")
@click.option(
    "--map", "map_file", type=click.Path(path_type=Path), help="A file of lines 'name in REF = name in CAND'."
)
@click.option("--pattern", help="For logs: a regular expression with the groups (?P<step>...) and (?P<loss>...).")
@click.option("--column", help="For curves: the column, key or tag of the loss, where it is not plain.")
@click.option("--table", is_flag=True, help="Also print a table of everything that was lined up.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write that table into a CSV file.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--exit-zero", is_flag=True, help="End with 0 whatever was found, for chains that must go on.")
def compare_command(
    reference: str,
    candidate: str,
    step: int | None,
    rank: int | None,
    map_file: Path | None,
    pattern: str | None,
    column: str | None,
    table: bool,
    csv: Path | None,
    html: Path | None,
    as_json: bool,
    exit_zero: bool,
) -> None:
    """Say where CAND begins to differ from REF, and whether their formats explain it.

    Both are runs (RUN@3 is step 3 of one), checkpoints of any framework, loss curves (CSV, JSONL, TensorBoard, logs) or
    folders of tensors. Ends with 1 if they differ beyond that, with 2 if it could not look.
    """
    kinds = comparable_kind(reference), comparable_kind(candidate)
    if kinds[0] != kinds[1]:
        raise CompareError.explain(
            f"A {kinds[0]} and a {kinds[1]} cannot be compared.",
            why=f"'{reference}' is a {kinds[0]}, '{candidate}' is a {kinds[1]}.",
            fix="name two of one kind.",
        )
    _check_options(
        kinds[0], {"--step": step, "--rank": rank, "--pattern": pattern, "--column": column, "--map": map_file}
    )
    asked = CompareOptions(
        as_json=as_json,
        table=table,
        csv=csv,
        html=html,
        map_file=map_file,
        step=step,
        rank=rank,
        pattern=pattern,
        column=column,
    )
    found = importlib.import_module(ANSWERS[kinds[0]]).answer(reference, candidate, asked)
    sys.exit(1 if found and not exit_zero else 0)


def _check_options(kind: ComparableKind, given: Mapping[str, object]) -> None:
    """Raise if an option was given that would do nothing here: whoever gave it believes that it does."""
    for option, value in given.items():
        if value is not None and kind not in OPTIONS_FOR[option]:
            raise UsageError.explain(
                f"{option} {value} means nothing for two {PLURALS[kind]}.",
                why=f"it is for {' and '.join(PLURALS[each] for each in OPTIONS_FOR[option])}.",
                fix=f"leave {option} out.",
            )
