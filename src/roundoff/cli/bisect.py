"""`roundoff bisect`: the fewest sites that must be wide for a training to be good, proven by training."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from roundoff.cli.console.progress import BisectProgress
from roundoff.errors import UsageError

_PATH = click.Path(path_type=Path)


def _parse_sites(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the sites of a list, or of the file that it names."""
    if text is None:
        return ()
    words = Path(text).read_text(encoding="utf-8").split() if Path(text).is_file() else text.split(",")
    return tuple(word.strip() for word in words if word.strip())


def _parse_switches(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals:
            raise UsageError.explain(
                f"--switch {name} needs a value.", fix="for example: --switch randomness=0, --switch substitute=fp64"
            )
    return {name: value for name, _, value in pairs}


def _to_seconds(ctx: click.Context, param: click.Parameter, minutes: float | None) -> float | None:
    return None if minutes is None else 60 * minutes


@click.command(
    name="bisect",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff bisect --bad half train --data digits --epochs 1",
)
@click.option("--good", default="fp32", show_default=True, metavar="RECIPE", help="Recipe of the sites kept wide.")
@click.option("--bad", metavar="RECIPE", help="Recipe that makes the training bad.  [default: the training's own]")
@click.option(
    "--judge",
    default="auto",
    show_default=True,
    metavar="JUDGE",
    help="What counts as bad: auto, nonfinite, loss, accuracy, rule:CODE (a finding), exit (a status other than 0).",
)
@click.option(
    "--sites",
    metavar="LIST",
    callback=_parse_sites,
    help="Search only these sites, 'blocks.*.attn,head', or those in a file, one per line.",
)
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_switches,
    help="substitute=fp64 (or cpu, decomposed, module:function) searches for ops to replace by another implementation "
    "instead of formats; others, such as randomness=0, are on in every run.",
)
@click.option(
    "--auto",
    is_flag=True,
    help="First check, in this order: configuration and data, widest formats, fixed random numbers, frozen scales; "
    "then search what is left, formats or ops.",
)
@click.option("--against", type=_PATH, metavar="RUN", help="A good run to compare with, for --auto.")
@click.option("--modules-only", is_flag=True, help="Do not search the ops inside the modules.")
@click.option("--mirror", is_flag=True, help="Find the fewest sites that make a good run bad, instead.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Runs of the reference, for noise.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs that judge each set.")
@click.option("--max-runs", type=click.IntRange(1), help="Stop the search after this many runs.")
@click.option(
    "--max-minutes",
    "max_seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_to_seconds,
    help="Start no run later than this.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of a script, set before it starts.")
@click.option(
    "--jobs", type=click.IntRange(min=0), default=1, show_default=True, help="Runs at a time, where possible."
)
@click.option(
    "--on", type=click.Choice(["pool", "ray"]), default="pool", show_default=True, help="Where runs are made."
)
@click.option("--name", help="Name of the folder.  [default: bisect-1, bisect-2, ...]")
@click.option("--runs", type=_PATH, default="runs", show_default=True, help="Parent directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("-m", "is_module", is_flag=True, help="The script is the name of a module.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="train OPTIONS | SCRIPT ARGS | COMMAND | RUN")
def bisect_command(
    words: tuple[str, ...], is_module: bool, seed: int, as_json: bool, switches: dict[str, str], **options: Any
) -> None:
    """Find the fewest sites that must be wide, and prove it: good with them, bad without any one of them.

    Trains repeatedly with different sites in the format of --good: modules first, then the ops inside them. The words
    are options of `roundoff train`, a script that calls apply_recipe, a run folder (its command is used), or any
    command, which gets the sites in ROUNDOFF_SITES and ROUNDOFF_OVERRIDES and answers with its exit status.

    The same command resumes an interrupted search. Ends with 1 if something was found, 0 if the bad recipe is not
    bad.
    """
    from roundoff.cli.training_argument import training_named
    from roundoff.experiments.bisect.answer import bisect_text
    from roundoff.experiments.bisect.experiment import bisect_training
    from roundoff.experiments.bisect.options import BisectOptions
    from roundoff.runs import to_json

    settings = BisectOptions(substitute=switches.pop("substitute", None), switches=switches, **options)
    target = training_named(words, command="bisect", is_module=is_module, with_rules=settings.with_rules, seed=seed)
    with BisectProgress(resume=shlex.join(["roundoff", *sys.argv[1:]])) as progress:
        answer = bisect_training(target, settings, on_event=progress.show)
    click.echo(to_json(answer.to_object()) if as_json else bisect_text(answer))
    sys.exit(1 if answer.found else 0)
