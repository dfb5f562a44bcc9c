"""`roundoff layouts`: does a training compute the same on many ranks as on one?"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, ScriptOptions, fills, json_option, name_option, runs_option, script_arguments
from roundoff.cli.terminal import ExitCode, exit_code_of
from roundoff.console import Paint, columns
from roundoff.errors import UsageError
from roundoff.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsOptions(ScriptOptions):
    """The options of `roundoff layouts`."""

    example = "roundoff layouts --mesh dp=2,tp=2 train.py --tp {tp}"

    mesh: str | None
    ranks: int | None
    reference: Path | None
    steps: str
    level: str
    table: bool
    name: str | None
    runs: Path


@click.command(
    name="layouts",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff layouts --mesh dp=2,tp=2 train.py --data-parallel {dp} --tensor-parallel {tp}",
)
@click.option("--mesh", metavar="NAME=SIZE,...", help="The groups of ranks, the last one of neighbours: dp=2,tp=2.")
@click.option("--ranks", type=click.IntRange(min=2), help="How many ranks, if they have no groups.")
@click.option("--reference", type=PATH, metavar="RUN", help="Compare with this run, instead of recording one rank.")
@click.option("--steps", default="0-1", show_default=True, help="Steps to record, from 0 on.")
@click.option(
    "--level",
    type=click.Choice(["tensors", "summary"]),
    default="tensors",
    show_default=True,
    help="Whole tensors, or only their statistics, which put together less.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of every random generator, the same on every rank.")
@click.option("--table", is_flag=True, help="Also print a table of everything that was put together.")
@name_option("two runs, before -one and -many", default="the script's name, numbered")
@runs_option("Parent directory of the runs.")
@json_option("Print the comparison as JSON, on the last line of stdout.")
@script_arguments()
@fills(lambda **options: LayoutsOptions(deterministic=False, repeat_batch=False, **options))
def layouts_command(options: LayoutsOptions) -> None:
    """Record SCRIPT on one rank and on the ranks of a mesh, and say what is wrong with the layout.

    The script finds its ranks in the variables that torchrun sets (RANK, WORLD_SIZE, ...), and the mesh in
    ROUNDOFF_MESH; {tp} among its arguments becomes the size of tp, which is 1 on one rank. It must give all ranks
    parts of one batch and of the same start values as on one rank.

    Exits with 1 if something is wrong, with 2 if a script failed or nothing could be compared.
    """
    from roundoff.cli.compare import report_on_layouts
    from roundoff.compare.layouts.rank_mesh import RankMesh
    from roundoff.experiments.ranked_script import record_on_ranks
    from roundoff.progress import waiting
    from roundoff.runs import Run

    if (options.mesh is None) == (options.ranks is None):
        raise UsageError.explain(
            "The layout is not known.", fix="give --mesh, for example --mesh dp=2,tp=2, or --ranks 4."
        )
    script = options.script()
    mesh = RankMesh.parse(options.mesh or f"ranks={options.ranks}")
    name = options.name or _free_name(options.runs, script.stem)
    words = [*(["-m"] if script.is_module else []), script.target, *script.args]
    common = ["--runs", str(options.runs), "--steps", options.steps, "--level", options.level, "--strict"]
    if options.seed is not None:
        common += ["--seed", str(options.seed)]
    reference = options.reference
    if reference is None:
        reference = options.runs / f"{name}-one"
        with waiting("recording 1 rank"):
            alone = dict.fromkeys(mesh.sizes, 1)
            record_on_ranks([*common, "--name", reference.name], words, num_ranks=1, sizes=alone)
    candidate = options.runs / f"{name}-many"
    with waiting(f"recording {plural(mesh.num_ranks, 'rank')}"):
        sizes = dict(mesh.sizes)
        record_on_ranks([*common, "--name", candidate.name], words, num_ranks=mesh.num_ranks, sizes=sizes)
    with waiting("comparing"):
        report = report_on_layouts(Run.open(reference), Run.open(candidate), options.mesh)
    if options.as_json:
        echo_json("layouts", report.to_object())
    else:
        click.echo(report.text(table=options.table, width=columns(), paint=Paint.of(sys.stdout)), color=True)
    sys.exit(exit_code_of(report.differs) if report.is_answered else ExitCode.COULD_NOT_LOOK)


def _free_name(runs: Path, stem: str) -> str:
    """Return a name of which there are no two runs yet: `train-1`."""
    names = (f"{stem}-{number}" for number in itertools.count(1))
    return next(name for name in names if not any((runs / f"{name}-{side}").exists() for side in ("one", "many")))
