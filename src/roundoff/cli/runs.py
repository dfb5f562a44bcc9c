"""`roundoff runs`: the runs in a directory, and the events of one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, fills, json_option
from roundoff.cli.terminal import ExitCode, echo
from roundoff.errors import UsageError
from roundoff.words import join_names, text_table

if TYPE_CHECKING:
    from roundoff.runs import Event, Run, RunSummary, UnreadableRun

DEFAULT_FOLDER = Path("runs")
MAX_NAMES = 12
"""An error lists at most this many of the names that exist."""
NUMBER_COLUMNS = ("min", "max", "mean", "nonfinite")
DROPPED_IF_ALL = {"rank": "0", "microbatch": "0", "parameter": "-", "source": "-"}
"""Columns that are not printed if every line has this value."""
DROPPED_FIRST = ("parameter", "mean", "shape", "dtype", "min", "source")
"""Columns that a narrow terminal leaves out, the first one first."""


class _RunsGroup(click.Group):
    """A group whose first word may also be a folder: `roundoff runs DIR` means `roundoff runs list DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    "runs",
    cls=_RunsGroup,
    subcommand_metavar="[DIR] | show RUN",
    epilog="Example: roundoff runs show runs/train-1 --step 3 --site 'blocks.*'",
)
def runs_command() -> None:
    """List the runs in DIR (default: ./runs), or show the events of one."""


@runs_command.command("list", epilog="Example: roundoff runs experiments/")
@click.argument("folder", metavar="[DIR]", type=PATH, default=DEFAULT_FOLDER)
@json_option("Print the runs as a JSON array.")
def list_command(folder: Path, as_json: bool) -> None:
    """List the runs in DIR with recipe, steps, last loss and findings, oldest first."""
    from roundoff.runs import RunSummary, list_runs

    runs = list_runs(folder)
    if not runs:
        why = "no directory in it contains a run.json." if folder.is_dir() else "it is not a directory."
        raise UsageError.explain(f"No runs in '{folder}'.", why=why, fix="record one: roundoff run train.py")
    if as_json:
        echo_json("runs", [run.to_object() for run in runs], indent=1)
    else:
        echo(_run_table(runs))
    if not any(isinstance(run, RunSummary) for run in runs):
        click.get_current_context().exit(ExitCode.COULD_NOT_LOOK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """The options of `roundoff runs show`."""

    path: Path
    step: int | None
    site: str | None
    phase: str | None
    op: str | None
    rank: int | None
    limit: int
    as_json: bool

    def filters(self) -> dict[str, Any]:
        """Return the filters that were given."""
        given = {name: getattr(self, name) for name in ("step", "site", "phase", "op", "rank")}
        return {name: value for name, value in given.items() if value is not None}


@runs_command.command("show", epilog="Example: roundoff runs show runs/train-1 --step 3 --op 'aten.addmm#*'")
@click.argument("path", metavar="RUN", type=PATH)
@click.option("--step", type=click.IntRange(min=0), help="Only this step.")
@click.option("--site", metavar="PATTERN", help="Only sites that match: 'blocks.*'.")
@click.option("--phase", metavar="PATTERN", help="Only forward, backward, optimizer or eval.")
@click.option("--op", metavar="PATTERN", help="Only ops that match: 'aten.bmm', 'aten.bmm#0', 'aten.*'.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Maximum number of lines (0: all)."
)
@json_option("Print all matching events as a JSON array.")
@fills(ShowOptions)
def show_command(options: ShowOptions) -> None:
    """Print the events of RUN that match all filters."""
    from roundoff.runs import Run, to_json

    run = Run.open(options.path)
    filters = options.filters()
    events = list(run.iter_events(**filters))
    if not events:
        raise _explain_no_match(run, filters)
    if options.as_json:
        echo("[\n" + ",\n".join(to_json(event.to_object()) for event in events) + "\n]")
    else:
        echo(_event_table(events, limit=options.limit or len(events)))


def _explain_no_match(run: Run, filters: dict[str, Any]) -> UsageError:
    """Name the filter that excludes everything, and the values that exist."""
    existing = run.events(columns=["step", "phase", "site", "op"])
    if not existing.num_rows:
        replayed = [f"see the replayed step: roundoff runs show {run.replay(step).path}" for step in run.replayed_steps]
        fix = replayed[0] if replayed else "record some: roundoff record --steps 0-1 SCRIPT"
        return UsageError.explain(f"'{run.path}' contains no events.", why="no step was recorded.", fix=fix)
    for name, value in filters.items():
        if not run.events(**{name: value}, columns=[name]).num_rows:
            values = sorted(existing[name].unique())
            recorded = join_names(list(map(str, values)), at_most=MAX_NAMES)
            what = f"No event of '{run.path}' has {name} '{value}'."
            return UsageError.explain(what, why=f"recorded {name}s: {recorded}.")
    wanted = " and ".join(f"{name} '{value}'" for name, value in filters.items())
    return UsageError.explain(f"No event of '{run.path}' has {wanted}.", why="each of them occurs, but not together.")


def _run_table(runs: Sequence[RunSummary | UnreadableRun]) -> str:
    from roundoff.runs import UnreadableRun

    rows = [("run", "recipe", "status", "steps", "last loss", "findings")]
    problems = []
    for run in runs:
        if isinstance(run, UnreadableRun):
            problems.append(f"{run.path}  cannot be read\n  {run.problem.replace(chr(10), chr(10) + '  ')}")
        else:
            loss = _number(run.last_loss)
            rows.append((str(run.path), run.recipe or "-", run.status, str(run.num_steps), loss, _findings_text(run)))
    left = ("run", "recipe", "status", "findings")
    table = [text_table(rows, left=left, ruled=False, width=sys.maxsize)] if len(rows) > 1 else []
    return "\n".join(table + problems)


def _findings_text(run: RunSummary) -> str:
    if run.findings is None:
        return "not diagnosed"
    if not run.findings:
        return "none"
    more = len(run.findings) - 1
    return run.findings[0].rule + (f", {more} more" if more else "")


def _event_table(events: Sequence[Event], *, limit: int) -> str:

    rows = [tuple(_event_cells(event).values()) for event in events[:limit]]
    header = tuple(_event_cells(events[0]))
    kept = [place for place, name in enumerate(header) if {row[place] for row in rows} != {DROPPED_IF_ALL.get(name)}]
    lines = [tuple(row[place] for place in kept) for row in (header, *rows)]
    # A pipe gets full names, which programs search for.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    lines = _with_room(lines, width=width)
    text = text_table(lines, left=set(header) - set(NUMBER_COLUMNS), ruled=False, width=width)
    more = len(events) - limit
    return f"{text}\n{more} more; --limit 0 prints all, --json all columns" if more > 0 else text


def _with_room(lines: list[tuple[str, ...]], *, width: int) -> list[tuple[str, ...]]:
    """Leave out columns, the least important first, until the lines fit or only the necessary ones are left.

    >>> _with_room([("op", "mean"), ("aten.mm#0", "0.25")], width=12)
    [('op',), ('aten.mm#0',)]
    """
    for name in DROPPED_FIRST:
        sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
        if sum(sizes) + 2 * (len(sizes) - 1) <= width:
            break
        if name in lines[0]:
            place = lines[0].index(name)
            lines = [(*line[:place], *line[place + 1 :]) for line in lines]
    return lines


def _event_cells(event: Event) -> dict[str, str]:
    from roundoff.runs import shape_to_text

    return {
        "step": str(event.step),
        "rank": str(event.rank),
        "microbatch": str(event.microbatch),
        "phase": event.phase,
        "site": event.site,
        "op": f"{event.op_name}:{event.output}",
        "parameter": event.parameter or "-",
        "dtype": event.dtype,
        "shape": shape_to_text(event.shape) or "scalar",
        "min": _number(event.min),
        "max": _number(event.max),
        "mean": _number(event.mean),
        "nonfinite": str(event.num_nonfinite),
        "source": event.source or "-",
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
