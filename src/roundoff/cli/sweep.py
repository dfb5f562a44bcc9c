"""`roundoff sweep`: train a table of recipes and settings, one row each."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from roundoff.cli.console.progress import SweepProgress
from roundoff.cli.console.screen import columns
from roundoff.errors import UsageError

if TYPE_CHECKING:
    from roundoff.experiments.sweep.sweep_rows import SweepRow


@click.command(name="sweep", epilog="Example: roundoff sweep activations --jobs 2 --csv activations.csv")
@click.argument("file", metavar="FILE|NAME", required=False)
@click.option("--jobs", type=click.IntRange(min=0), default=1, show_default=True, help="Trainings at a time.")
@click.option(
    "--on",
    type=click.Choice(["pool", "ray"]),
    default="pool",
    show_default=True,
    help="Train in processes on this machine, or on a Ray cluster (RAY_ADDRESS, by default on this machine).",
)
@click.option("--only", metavar="PATTERN", help="Only train matching rows: O2, 'recipe=O*', 'O2, 64*'.")
@click.option("--steps", type=click.IntRange(min=1), help="Stop every training after this many steps, as a rehearsal.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="Also write the rows as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option("--resume", is_flag=True, help="Keep finished rows with unchanged settings; train the others.")
@click.option("--name", help="Name of the folder.  [default: the name in the file]")
@click.option("--runs", type=click.Path(path_type=Path), default="runs", show_default=True, help="Parent directory.")
@click.option(
    "--show",
    "shown",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Train nothing: print the rows that this folder holds so far, and write its page and CSV again.",
)
@click.option("--list", "list_them", is_flag=True, help="List the included sweeps.")
def sweep_command(
    file: str | None,
    jobs: int,
    on: Literal["pool", "ray"],
    only: str | None,
    steps: int | None,
    csv_file: Path | None,
    as_json: bool,
    resume: bool,
    name: str | None,
    runs: Path,
    shown: Path | None,
    list_them: bool,
) -> None:
    """Train every combination of a sweep file, and print one row for each.

    Every training runs in its own process; one that crashes is a row that says so. 0 jobs: all run in this process.
    Rows are stored in RUNS/NAME as they finish, also as a page (report.html) and as rows.csv; --resume continues an
    interrupted sweep.

    Ends with 1 if a training crashed. NaN is a result.
    """
    if list_them:
        click.echo(_listing())
        return
    _check_writable(csv_file)
    if shown is not None:
        if file or only or steps or resume or name:
            raise UsageError.explain(
                "--show cannot be combined with options for training.",
                why="it only reads a folder.",
                fix=f"roundoff sweep --show {shown}",
            )
        from roundoff.experiments.sweep.folder import SweepFolder
        from roundoff.experiments.sweep.results import write_results

        stored = write_results(SweepFolder(path=shown))
        _print_answer(
            stored.rows, stored.axes, num_planned=len(stored.planned), folder=shown, csv_file=csv_file, as_json=as_json
        )
    if file is None:
        raise UsageError.explain(
            "No sweep is given.", fix="roundoff sweep FILE.toml, or a name from roundoff sweep --list"
        )
    from roundoff.experiments.sweep.definition import find_sweep, read_sweep
    from roundoff.experiments.sweep.experiment import run_sweep

    sweep = read_sweep(find_sweep(file))
    sweep = sweep.only(only) if only else sweep
    sweep = sweep.shortened(steps) if steps else sweep
    folder = runs / (name or sweep.name)
    with SweepProgress(num_rows=len(sweep.trainings), resume=_resume_command()) as progress:
        rows = run_sweep(sweep, folder=folder, jobs=jobs, on=on, resume=resume, on_row=progress.row)
    _print_answer(rows, sweep.axes, num_planned=len(rows), folder=folder, csv_file=csv_file, as_json=as_json)


def _print_answer(
    rows: list[SweepRow], axes: tuple[str, ...], *, num_planned: int, folder: Path, csv_file: Path | None, as_json: bool
) -> NoReturn:
    """Print the rows and where the page is, and end with the exit code."""
    from roundoff.experiments.sweep.folder import SweepFolder
    from roundoff.experiments.sweep.sweep_rows import rows_csv, summarize_rows

    if csv_file is not None:
        _write(csv_file, rows_csv(rows, axes))
    if as_json:
        from roundoff.runs import to_json

        click.echo(to_json([row.to_object() for row in rows], indent=1))
    else:
        click.echo(f"{_text(rows, axes)}\n\n{summarize_rows(rows, num_planned=num_planned)}")
    click.echo(f"page  {SweepFolder(path=folder).page}", err=True)
    sys.exit(1 if any(row.failure for row in rows) else 0)


def _listing() -> str:
    from roundoff.experiments.sweep.definition import read_sweep, shipped_sweeps

    sweeps = [read_sweep(path) for path in shipped_sweeps()]
    lines = [f"{sweep.name:14} {len(sweep.trainings):3} rows  {sweep.description.splitlines()[0]}" for sweep in sweeps]
    return "\n".join(line if len(line) <= columns() else f"{line[: columns() - 4]} ..." for line in lines)


def _text(rows: list[SweepRow], axes: tuple[str, ...]) -> str:
    from roundoff.experiments.sweep.sweep_rows import TEXT_COLUMNS, rows_table
    from roundoff.report.text_table import text_table

    return text_table(rows_table(rows, axes), left={*axes, *TEXT_COLUMNS}, ruled=sys.stdout.isatty())


def _check_writable(csv_file: Path | None) -> None:
    """Raise if the CSV file cannot be written, now and not after the last training."""
    if csv_file is not None and not csv_file.parent.is_dir():
        raise UsageError.explain(f"'{csv_file}' cannot be written.", why=f"there is no folder '{csv_file.parent}'.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.") from error


def _resume_command() -> str:
    """Return the command that resumes this one: the same words, and --resume."""
    context = click.get_current_context()
    words = ["roundoff", "sweep", str(context.params["file"])]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if isinstance(option, click.Option) and value not in (option.default, None, False):
            words += [option.opts[0], *([] if option.is_flag else [str(value)])]
    return shlex.join(words if context.params["resume"] else [*words, "--resume"])
