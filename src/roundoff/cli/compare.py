"""`roundoff compare`: where a candidate begins to differ from its reference."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from roundoff.cli.compared import Asked, Kind, kind_of
from roundoff.errors import CompareError, UsageError

ANSWERS = {
    Kind.RUN: "roundoff.cli.compare_runs",
    Kind.CHECKPOINT: "roundoff.cli.compare_checkpoints",
    Kind.CURVE: "roundoff.cli.compare_curves",
    Kind.TENSORS: "roundoff.cli.compare_tensors",
}
"""Where each kind has its `answer`, which prints what was found and says whether that was anything."""

OPTIONS_FOR = {
    "--step": (Kind.RUN,),
    "--rank": (Kind.RUN,),
    "--pattern": (Kind.CURVE,),
    "--column": (Kind.CURVE,),
    "--map": (Kind.RUN, Kind.CHECKPOINT, Kind.TENSORS),
}
"""Options that mean nothing for the other kinds."""
PLURALS = {
    Kind.RUN: "runs",
    Kind.CHECKPOINT: "checkpoints",
    Kind.CURVE: "curves",
    Kind.TENSORS: "folders of tensors",
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
    kinds = kind_of(reference), kind_of(candidate)
    if kinds[0] != kinds[1]:
        raise CompareError.explain(
            f"A {kinds[0]} and a {kinds[1]} cannot be compared.",
            why=f"'{reference}' is a {kinds[0]}, '{candidate}' is a {kinds[1]}.",
            fix="name two of one kind.",
        )
    _check_options(
        kinds[0], {"--step": step, "--rank": rank, "--pattern": pattern, "--column": column, "--map": map_file}
    )
    asked = Asked(
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


def _check_options(kind: Kind, given: Mapping[str, object]) -> None:
    """Raise if an option was given that would do nothing here: whoever gave it believes that it does."""
    for option, value in given.items():
        if value is not None and kind not in OPTIONS_FOR[option]:
            raise UsageError.explain(
                f"{option} {value} means nothing for two {PLURALS[kind]}.",
                why=f"it is for {' and '.join(PLURALS[each] for each in OPTIONS_FOR[option])}.",
                fix=f"leave {option} out.",
            )
