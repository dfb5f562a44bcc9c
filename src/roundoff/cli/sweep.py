"""`roundoff sweep`: train a table of recipes and settings, one row each."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, backend_options, fills, json_option, name_option, runs_option
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.console import columns
from roundoff.errors import UsageError
from roundoff.files import write_output
from roundoff.progress import ProgressBar
from roundoff.words import text_table

if TYPE_CHECKING:
    from roundoff.experiments.engine.scheduler import Backend
    from roundoff.experiments.sweep.sweep_rows import SweepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The options of `roundoff sweep`."""

    file: str | None
    jobs: int
    on: Backend
    only: tuple[str, ...]
    changes: tuple[str, ...]
    steps: int | None
    csv_file: Path | None
    as_json: bool
    resume: bool
    name: str | None
    runs: Path
    shown: Path | None
    each_seed: bool
    list_them: bool


@click.command(name="sweep", epilog="Example: roundoff sweep activations --jobs 2 --csv activations.csv")
@click.argument("file", metavar="FILE|NAME", required=False)
@backend_options
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Only train matching rows: O2, 'recipe=O*', 'O2, 64*'. Several add up.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a setting of every training that no axis varies: --set data=fashion-mnist. Repeatable.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Stop every training after this many steps, as a rehearsal.")
@click.option("--csv", "csv_file", type=PATH, metavar="FILE", help="Also write the rows as CSV.")
@json_option("Print one JSON array.")
@click.option("--resume", is_flag=True, help="Keep finished rows with unchanged settings; train the others.")
@name_option("folder", default="the name in the file")
@runs_option("Parent directory of the folder.")
@click.option(
    "--show",
    "shown",
    type=PATH,
    metavar="FOLDER",
    help="Train nothing: print the rows that this folder holds so far, and write its page and CSV again.",
)
@click.option("--each-seed", is_flag=True, help="Print a row for every seed instead of mean, lowest and highest.")
@click.option("--list", "list_them", is_flag=True, help="List the included sweeps.")
@fills(SweepOptions)
def sweep_command(options: SweepOptions) -> None:
    """Train every combination of a sweep file, and print one row for each.

    Every training runs in its own process; one that crashes is a row that says so. Rows are stored in RUNS/NAME as they
    finish, also as a page (report.html) and as rows.csv; --resume continues an interrupted sweep.

    Ends with 1 if a training crashed. NaN is a result.
    """
    if options.list_them:
        echo(_listing())
        return
    csv_file = options.csv_file
    if csv_file is not None and not csv_file.parent.is_dir():  # checked now and not after the last training
        raise UsageError.explain(f"'{csv_file}' cannot be written.", why=f"there is no folder '{csv_file.parent}'.")
    if options.shown is not None:
        _show_stored(options.shown, options)
    if options.file is None:
        raise UsageError.explain(
            "No sweep is given.", fix="roundoff sweep FILE.toml, or a name from roundoff sweep --list"
        )
    from roundoff.experiments.sweep.definition import find_sweep, read_sweep
    from roundoff.experiments.sweep.sweep_folder import run_sweep

    sweep = read_sweep(find_sweep(options.file), changes=options.changes)
    sweep = sweep.only(*options.only) if options.only else sweep
    sweep = sweep.with_steps(options.steps) if options.steps else sweep
    folder = options.runs / (options.name or sweep.name)
    with SweepProgress(num_rows=len(sweep.trainings), resume=_resume_command()) as progress:
        rows = run_sweep(
            sweep, folder=folder, jobs=options.jobs, on=options.on, resume=options.resume, on_row=progress.row
        )
    _print_answer(rows, sweep.axes, num_planned=len(rows), folder=folder, options=options)


def _show_stored(folder: Path, options: SweepOptions) -> NoReturn:
    """Print the rows that a folder holds so far, and write its page and CSV again."""
    from roundoff.experiments.sweep.sweep_folder import SweepFolder, write_results

    if options.file or options.only or options.changes or options.steps or options.resume or options.name:
        raise UsageError.explain(
            "--show cannot be combined with options for training.",
            why="it only reads a folder.",
            fix=f"roundoff sweep --show {folder}",
        )
    stored = write_results(SweepFolder(path=folder))
    _print_answer(stored.rows, stored.axes, num_planned=len(stored.planned), folder=folder, options=options)


def _print_answer(
    rows: list[SweepRow], axes: tuple[str, ...], *, num_planned: int, folder: Path, options: SweepOptions
) -> NoReturn:
    """Print the rows and where the page is, and end with the exit code."""
    from roundoff.experiments.sweep.seed_groups import has_several_seeds, seeds_table
    from roundoff.experiments.sweep.sweep_folder import SweepFolder
    from roundoff.experiments.sweep.sweep_rows import TEXT_COLUMNS, rows_csv, rows_table, summarize_rows

    if options.csv_file is not None:
        try:
            write_output(options.csv_file, rows_csv(rows, axes).encode())
        except OSError as error:
            raise UsageError.explain(f"'{options.csv_file}' cannot be written.", why=f"{error.strerror}.") from error
    if options.as_json:
        echo_json("sweep", [row.to_object() for row in rows], indent=1)
    else:
        lines = seeds_table if has_several_seeds(rows) and not options.each_seed else rows_table
        table = text_table(lines(rows, axes), left={*axes, *TEXT_COLUMNS}, ruled=sys.stdout.isatty())
        echo(f"{table}\n\n{summarize_rows(rows, num_planned=num_planned)}")
    echo(f"page  {SweepFolder(path=folder).page}", err=True)
    sys.exit(exit_code_of(any(row.failure for row in rows)))


def _listing() -> str:
    from roundoff.experiments.sweep.definition import read_sweep, shipped_sweeps

    sweeps = [read_sweep(path) for path in shipped_sweeps()]
    lines = [f"{sweep.name:15} {len(sweep.trainings):3} rows  {sweep.description.splitlines()[0]}" for sweep in sweeps]
    return "\n".join(line if len(line) <= columns() else f"{line[: columns() - 4]} ..." for line in lines)


def _resume_command() -> str:
    """Return the command that resumes this one: the same words, and --resume."""
    context = click.get_current_context()
    words = ["roundoff", "sweep", str(context.params["file"])]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if isinstance(option, click.Option) and value not in (option.default, None, False):
            for each in value if isinstance(value, tuple) else (value,):
                words += [option.opts[0], *([] if option.is_flag else [str(each)])]
    return shlex.join(words if context.params["resume"] else [*words, "--resume"])


class SweepProgress(ProgressBar):
    """Counts the rows of a sweep; on a terminal only failed rows get a line."""

    def __init__(self, *, num_rows: int, resume: str) -> None:
        super().__init__("rows", total=num_rows, on_interrupt=self._lines_after_interrupt)
        self._num_rows, self._num_done, self._resume = num_rows, 0, resume

    def row(self, row: SweepRow, is_new: bool) -> None:
        """Count a row, and show its result."""
        self._num_done += 1
        self.move(self._num_done, description=row.name)
        # A mistake in the file often makes every row fail, so failures are shown at once, above the bar too.
        if row.failure is not None or not self.is_bar:
            kept = "" if is_new else " (kept)"
            self.line(f"[{self._num_done}/{self._num_rows}] {row.name}: {_row_result(row)}{kept}")

    def _lines_after_interrupt(self) -> Sequence[str]:
        return [f"{self._num_done} of {self._num_rows} rows are kept. To resume: {self._resume}"]


def _row_result(row: SweepRow) -> str:
    if row.top1 is None:
        return row.note
    bad = "" if row.first_nonfinite_step is None else f", not finite at step {row.first_nonfinite_step}"
    skipped = f", {row.skipped} skipped" if row.skipped else ""
    return f"top-1 {row.top1:.3f}{bad}{skipped}, {row.seconds:.1f} s"
