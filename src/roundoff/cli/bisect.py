"""`roundoff bisect`: the fewest sites that must be wide for a training to be good, proven by training."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from roundoff.cli.console.progress import BisectProgress
from roundoff.errors import UsageError

_PATH = click.Path(path_type=Path)


@click.command(
    name="bisect",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff bisect --bad half train --data digits --epochs 1",
)
@click.option("--good", default="fp32", show_default=True, metavar="RECIPE", help="What sites are given.")
@click.option("--bad", metavar="RECIPE", help="What spoils the training.  [default: the training's own]")
@click.option(
    "--judge",
    default="auto",
    show_default=True,
    metavar="JUDGE",
    help="What is bad: auto, nonfinite, loss, accuracy, rule:CODE (a finding), exit (a status other than 0).",
)
@click.option(
    "--sites", metavar="LIST", help="Search among these only, 'blocks.*.attn,head', or those in a file, one a line."
)
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="NAME=VALUE",
    help="substitute=fp64 (or cpu, decomposed, module:function) searches by another implementation of ops, and not by "
    "formats; others, such as randomness=0, are on in every run.",
)
@click.option(
    "--auto",
    is_flag=True,
    help="First try, in this order: configuration and data, widest formats, fixed random numbers, frozen scales; then "
    "search what that leaves, formats or ops.",
)
@click.option("--against", type=_PATH, metavar="RUN", help="A good run to compare with, for --auto.")
@click.option("--modules-only", is_flag=True, help="Do not search the ops inside the modules.")
@click.option("--mirror", is_flag=True, help="Find the fewest sites that spoil a good run, instead.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Runs that tell the noise.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs that judge one set.")
@click.option("--max-runs", type=click.IntRange(1), help="End the search after so many runs.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Begin no run later than this.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of scripts: set before they start.")
@click.option(
    "--jobs", type=click.IntRange(min=0), default=1, show_default=True, help="Runs at a time, where it can be."
)
@click.option("--on", "place", type=click.Choice(["pool", "ray"]), default="pool", show_default=True, help="Where.")
@click.option("--name", help="Name of the folder.  [default: bisect-1, bisect-2, ...]")
@click.option("--runs", "base", type=_PATH, default="runs", show_default=True, help="Folder of that folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("-m", "is_module", is_flag=True, help="The script is the name of a module.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="train OPTIONS | SCRIPT ARGS | COMMAND | RUN")
def bisect_command(
    good: str,
    bad: str | None,
    judge: str,
    sites: str | None,
    switches: tuple[str, ...],
    auto: bool,
    against: Path | None,
    modules_only: bool,
    mirror: bool,
    seeds: int,
    repeats: int,
    max_runs: int | None,
    max_minutes: float | None,
    seed: int,
    jobs: int,
    place: str,
    name: str | None,
    base: Path,
    as_json: bool,
    is_module: bool,
    words: tuple[str, ...],
) -> None:
    """Find the fewest sites that must be wide, and prove it: good with them, bad without any one of them.

    Trains again and again with other sites in the format of --good: modules first, then the ops inside them. The words
    are options of `roundoff train`, a script that calls apply_recipe, a run folder (its command is taken), or any
    command, which finds the sites in ROUNDOFF_SITES and ROUNDOFF_OVERRIDES and answers by its exit status.

    The same command goes on where an interrupted one was. Ends with 1 if something was found, 0 if the bad recipe is
    not bad.
    """
    from roundoff.cli.training_argument import training_named
    from roundoff.experiments.bisect.answer import bisect_text
    from roundoff.experiments.bisect.experiment import bisect_training
    from roundoff.experiments.bisect.options import BisectOptions
    from roundoff.runs import to_json

    chosen = _switches(switches)
    options = BisectOptions(
        good=good,
        bad=bad,
        judge=judge,
        sites=_sites(sites),
        seeds=seeds,
        repeats=repeats,
        modules_only=modules_only,
        mirror=mirror,
        max_runs=max_runs,
        substitute=chosen.pop("substitute", None),
        switches=chosen,
        auto=auto,
        against=against,
        max_seconds=None if max_minutes is None else 60 * max_minutes,
    )
    with_rules = judge.startswith("rule:")
    subject = training_named(words, command="bisect", is_module=is_module, with_rules=with_rules, seed=seed)
    with BisectProgress(again=_again()) as progress:
        answer = bisect_training(
            subject,
            options,
            base=base,
            name=name,
            jobs=jobs,
            on=place,  # type: ignore[arg-type]  # click has checked it
            on_event=progress.tell,
        )
    click.echo(to_json(answer.to_object()) if as_json else bisect_text(answer))
    sys.exit(1 if answer.found else 0)


def _sites(text: str | None) -> tuple[str, ...]:
    """Return the sites of a list, or of the file that it names."""
    if text is None:
        return ()
    words = Path(text).read_text(encoding="utf-8").split() if Path(text).is_file() else text.split(",")
    return tuple(word.strip() for word in words if word.strip())


def _switches(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals:
            raise UsageError.explain(
                f"--switch {name} says not what to set it to.", fix="for example: --switch substitute=fp64"
            )
    return {name: value for name, _, value in pairs}


def _again() -> str:
    """Return the command that goes on with what this one began: the same words."""
    return shlex.join(["roundoff", *sys.argv[1:]])
