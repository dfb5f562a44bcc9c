"""`roundoff bisect`: the fewest sites that must be wide for a training to be good, proven by training."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.cli.training_argument import training_named, training_options
from roundoff.errors import UsageError
from roundoff.progress import ProgressBar
from roundoff.words import join_names

if TYPE_CHECKING:
    from roundoff.experiments.bisect.bisect_options import BisectEvent

_MAX_SHOWN = 4
_WIDTH = 100


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
@click.option("--against", type=PATH, metavar="RUN", help="A good run to compare with, for --auto.")
@click.option("--modules-only", is_flag=True, help="Do not search the ops inside the modules.")
@click.option("--mirror", is_flag=True, help="Find the fewest sites that make a good run bad, instead.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Runs of the reference, for noise.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs that judge each set.")
@click.option("--max-runs", type=click.IntRange(1), help="Stop the search after this many runs.")
@training_options("bisect", metavar="train OPTIONS | SCRIPT ARGS | COMMAND | RUN")
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
    from roundoff.experiments.bisect.bisect_answer import bisect_text
    from roundoff.experiments.bisect.bisect_options import BisectOptions
    from roundoff.experiments.bisect.bisection import bisect_training

    settings = BisectOptions(substitute=switches.pop("substitute", None), switches=switches, **options)
    target = training_named(words, command="bisect", is_module=is_module, with_rules=settings.with_rules, seed=seed)
    with BisectProgress(resume=shlex.join(["roundoff", *sys.argv[1:]])) as progress:
        answer = bisect_training(target, settings, on_event=progress.show)
    if as_json:
        echo_json("bisect", answer.to_object())
    else:
        echo(bisect_text(answer))
    sys.exit(exit_code_of(bool(answer.found)))


class BisectProgress(ProgressBar):
    """Shows a line for every run of a bisection, and on the bar what is known about the culprits."""

    def __init__(self, *, resume: str) -> None:
        super().__init__("runs", time="elapsed", on_interrupt=self._lines_after_interrupt)
        self._resume = resume
        self._known: tuple[str, ...] = ()
        self._num_runs = 0

    def show(self, event: BisectEvent) -> None:
        """Show the result of one more run."""
        self._num_runs = event.num_runs or self._num_runs
        self._known = event.known or self._known
        self.line(bisect_line(event))
        self.move(event.num_runs or 0, total=event.at_most, description=known_text(event.known))

    def _lines_after_interrupt(self) -> Sequence[str]:
        known = known_text(self._known) or "nothing is known yet"
        return [
            f"interrupted after {self._num_runs} runs of the search; {known}",
            f"every run is kept. To resume: {self._resume}",
        ]


def bisect_line(event: BisectEvent) -> str:
    """Return one run as one line, with as many of the suspects as fit."""
    lines = (_format_bisect_line(event, most=most) for most in range(_MAX_SHOWN, -1, -1))
    shortest = _format_bisect_line(replace(event, seconds_left=None), most=0)
    line = next((line for line in lines if len(line) <= _WIDTH), shortest)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def known_text(known: tuple[str, ...], *, most: int = _MAX_SHOWN) -> str:
    """Return among which sites the culprits are.

    >>> known_text(("embed", "head"))
    'culprits among 2 sites: embed, head'
    """
    if not known:
        return ""
    if len(known) == 1:
        return f"culprit {known[0]}"
    if most == 0:
        return f"culprits among {len(known)} sites"
    return f"culprits among {len(known)} sites: {join_names(known, at_most=most)}"


def _format_bisect_line(event: BisectEvent, *, most: int) -> str:
    kept = "" if event.is_new else " (kept)"
    verdict = f": {event.verdict}" if event.verdict else ""
    if event.num_runs is None:
        return f"[before] {event.what}{verdict}{kept}"
    place = f"{event.num_runs}" if event.at_most is None else f"{event.num_runs}/{event.at_most}"
    known = f"; {known_text(event.known, most=most)}" if event.known else ""
    left = "" if event.seconds_left is None else f"; at most {_duration(event.seconds_left)} left"
    return f"[{place}] {event.what}{verdict}{kept}{known}{left}"


def _duration(seconds: float) -> str:
    """Return a time, rounded for someone who waits.

    >>> _duration(7.2), _duration(180)
    ('7 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
