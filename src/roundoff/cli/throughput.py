"""`roundoff throughput`: which workers, threads, recipe and ranks train fastest on this machine and data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import Command, json_option
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.cli.train import settings_of, train_command
from roundoff.errors import UsageError
from roundoff.words import plural, text_table

if TYPE_CHECKING:
    from roundoff.experiments.throughput import Speed

_LIKE_TRAIN = {
    *("data", "model", "batch_size", "accumulate", "optimizer", "width", "context", "image_size", "shrink", "limit"),
    *("augment", "mixup", "ema", "clip", "label_smoothing", "loss_reduction", "lr", "device", "dist_backend"),
    *("find_unused_parameters", "sync_bn", "fsdp"),
}
"""Options of `roundoff train` that determine the cost of a step; they work here in the same way."""

_LEFT = ("recipe", "note")


def _parse_words(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    """Return the words between commas, without repetitions."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise click.BadParameter("give one or more, separated by commas.", ctx, param)
    return words


def _parse_numbers(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the whole numbers between commas, without repetitions."""
    words = _parse_words(ctx, param, text)
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"'{text}' is not a list of whole numbers such as 0,2.", ctx, param)
    return tuple(map(int, words))


def _list_option(name: str, parse: Callable[..., Any], *, default: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, metavar="LIST", callback=parse, default=default, show_default=True, help=text)


@click.command(
    name="throughput",
    epilog="Example: roundoff throughput --data digits --workers 0 --threads 1 --seconds 1",
)
@_list_option("--recipes", _parse_words, default="fp32", text="Recipes to try.")
@_list_option("--workers", _parse_numbers, default="0,2", text="Loader processes per rank.")
@_list_option("--threads", _parse_numbers, default="1,2", text="Threads per rank.")
@_list_option("--procs", _parse_numbers, default="1", text="Ranks (processes).")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Time for each combination.",
)
@json_option()
def throughput_command(
    recipes: tuple[str, ...],
    workers: tuple[int, ...],
    threads: tuple[int, ...],
    procs: tuple[int, ...],
    seconds: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Train for some seconds with every combination, and print the fastest as a command to use.

    Each runs in a new process; several ranks are started as by `roundoff train --procs`. `first batch` is the time
    until the first batch: reading the data, starting workers, and starting ranks. Nothing is written.

    Ends with 1 if a combination failed.
    """
    from roundoff.experiments.throughput import all_launches, fastest, measure_throughput
    from roundoff.precision import find_recipe
    from roundoff.train import TrainConfig
    from roundoff.train.data import load_data

    common = TrainConfig(**settings_of(options))
    for recipe in recipes:  # an unknown recipe or missing data would make every training fail
        find_recipe(recipe)
    load_data(common)
    tried = all_launches(recipes=recipes, workers=workers, threads=threads, procs=procs)
    speeds = measure_throughput(common, tried, seconds=seconds, on_speed=_SpeedLines(len(tried)))
    best = fastest(speeds)
    if best is None:
        why = f"the first one failed: {(speeds[0].failure or '').rstrip('.')}."
        raise UsageError.explain("No combination could be measured.", why=why)
    command = best.launch.config(common).command(without=("runs",))
    if as_json:
        answer: dict[str, Any] = {
            "speeds": [speed.to_object() for speed in speeds],
            "best": best.to_object(),
            "command": command,
        }
        echo_json("throughput", answer, indent=1)
    else:
        echo(f"{_table(speeds, best)}\n\nuse  {command}")
    sys.exit(exit_code_of(any(speed.failure for speed in speeds)))


throughput_command.params[:0] = [param for param in train_command.params if param.name in _LIKE_TRAIN]


def _table(speeds: list[Speed], best: Speed) -> str:

    lines: list[tuple[str, ...]] = [
        ("recipe", "ranks", "threads", "workers", "samples/s", "first batch", "cores busy", "note")
    ]
    for speed in speeds:
        launch = speed.launch
        note = "fastest" if speed is best else f"failed: {speed.failure}" if speed.failure else ""
        rate = _number(speed.samples_per_second, ".0f")
        first = _number(speed.first_batch_seconds, ".1f", " s")
        counts = (str(count) for count in (launch.procs, launch.threads, launch.workers))
        lines.append((launch.recipe, *counts, rate, first, _number(speed.cpu_share, ".1f"), note))
    return text_table(lines, left=_LEFT, ruled=sys.stdout.isatty())


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


class _SpeedLines:
    """Prints a line on stderr for every combination that was measured, with the time left."""

    def __init__(self, num_settings: int) -> None:
        self._num_settings, self._num_done = num_settings, 0
        self._began = time.monotonic()

    def __call__(self, speed: Speed) -> None:
        self._num_done += 1
        launch = speed.launch
        counts = {"rank": launch.procs, "thread": launch.threads, "worker": launch.workers}
        what = ", ".join([launch.recipe, *(plural(n, noun) for noun, n in counts.items())])
        rate = _number(speed.samples_per_second, ".0f", " samples/s")
        left = (time.monotonic() - self._began) / self._num_done * (self._num_settings - self._num_done)
        ended = f"{speed.failure or rate}{f'; about {left:.0f} s left' if left >= 1 else ''}"
        echo(f"[{self._num_done}/{self._num_settings}] {what}: {ended}", err=True)
