"""`roundoff what-if`: play a saved bad step with something changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, fills, json_option
from roundoff.cli.replay import find_saved_step
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.errors import ReplayError, UsageError
from roundoff.progress import waiting
from roundoff.words import text_table

if TYPE_CHECKING:
    from roundoff.record.loop.sites import Sites
    from roundoff.replay.saved.rerun import PlayedChange
    from roundoff.replay.state import Training
    from roundoff.replay.what_if import Change

_MAX_LOSSES = 4
_NORM = click.FloatRange(min=0, min_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """The options of `roundoff what-if`."""

    path: Path
    step: int | None
    rank: int | None
    builder: str
    rates: tuple[str, ...]
    norms: tuple[float, ...]
    wide: tuple[str, ...]
    repeat: int
    as_json: bool

    def changes(self) -> list[Callable[[Training, Sites], Change]]:
        """Return what makes each change of a newly built training."""
        makers: list[Callable[[Training, Sites], Change]] = [_rate(text) for text in self.rates]
        makers += [partial(_clip, norm) for norm in self.norms]
        makers += [partial(_wide, site) for site in self.wide]
        if not makers:
            raise UsageError.explain(
                "There is nothing to change.",
                why="what-if plays a step with a change.",
                fix="--lr 0.1x, --clip 1, --wide all",
            )
        return makers


@click.command("what-if", epilog="Example: roundoff what-if runs/train-1 --builder model.py:build --lr 0.1x --wide all")
@click.argument("path", metavar="RUN", type=PATH)
@click.option("--builder", metavar="FILE.py:FUNCTION", required=True, help="Function that returns (model, optimizer).")
@click.option("--step", type=click.IntRange(min=0), help="Which saved step.  [default: the first]")
@click.option("--rank", type=click.IntRange(min=0), help="Which rank's files.  [default: the first rank]")
@click.option("--lr", "rates", metavar="RATE", multiple=True, help="Another learning rate: 1e-4, or 0.1x for a tenth.")
@click.option("--clip", "norms", metavar="NORM", multiple=True, type=_NORM, help="Clip gradients to this norm.")
@click.option("--wide", metavar="SITE", multiple=True, help="Compute this layer in fp32; `all` for everything.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Times in a row to play it.")
@json_option()
@fills(WhatIfOptions)
def what_if_command(options: WhatIfOptions) -> None:
    """Play the bad step saved in RUN as it was, and once more for each change.

    Each time starts from the saved state; the step is then played several times in a row with its batch, so that a rate
    or a limit shows its effect. --lr, --clip and --wide can be given several times.

    Exits with 1 if no change keeps losses and weights finite, otherwise with 0.
    """
    from roundoff.replay.saved.builder import Builder
    from roundoff.replay.saved.rerun import play_with_changes
    from roundoff.runs import JsonValue, Run

    run = Run.open(options.path)
    changes = options.changes()
    saved_step, rank = find_saved_step(run, step=options.step, rank=options.rank)
    step = saved_step.steps[0] if saved_step.steps else options.step
    with waiting("playing the step"):
        played = play_with_changes(
            saved_step, build=Builder(options.builder), changes=changes, repeat=options.repeat, rank=rank
        )
    if options.as_json:
        found: list[JsonValue] = [
            {"change": each.text, "is_good": each.is_good, "losses": list(each.losses)} for each in played
        ]
        about: dict[str, JsonValue] = {"run": str(options.path), "step": step, "repeat": options.repeat}
        echo_json("what-if", {**about, "played": found}, indent=1)
    else:
        echo(what_if_text(played, step=step, repeat=options.repeat))
    sys.exit(exit_code_of(not any(each.is_good for each in played[1:])))


def what_if_text(played: Sequence[PlayedChange], *, step: int | None, repeat: int) -> str:
    """Lay out the result of each change."""
    times = "once" if repeat == 1 else f"{repeat} times in a row"
    rows = [("with", "result", "losses")]
    rows += [(each.text, "finite" if each.is_good else "not finite", _losses(each.losses)) for each in played]
    return f"step {step}, played {times}\n{text_table(rows, left=rows[0], ruled=False)}"


def _losses(losses: Sequence[float]) -> str:
    shown = [f"{loss:.4g}" for loss in losses]
    if len(shown) > _MAX_LOSSES:
        shown = [*shown[: _MAX_LOSSES - 1], "...", shown[-1]]
    return ", ".join(shown) or "none"


def _rate(text: str) -> Callable[[Training, Sites], Change]:
    from roundoff.replay.what_if import rate_of, rate_times

    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError.explain(f"Invalid learning rate '{text}'.", fix="a number such as 1e-4, or 0.1x for a tenth.")
    change = rate_times(value) if text.endswith("x") else rate_of(value)
    return lambda *_: change


def _clip(norm: float, training: Training, sites: Sites) -> Change:
    from roundoff.replay.what_if import clip_to

    return clip_to(norm)


def _wide(site: str, training: Training, sites: Sites) -> Change:
    from roundoff.replay.what_if import EVERYTHING_WIDE, module_at, wide_site

    if site == "all":
        return EVERYTHING_WIDE
    module = module_at(site, training, sites)
    if module is None:
        raise ReplayError.explain(f"The model has no layer '{site}'.", fix="roundoff params FILE.py:build lists them.")
    return wide_site(module, site)
