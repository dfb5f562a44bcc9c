"""Which way of starting a training is fastest here: every combination is tried for some seconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from roundoff.errors import TrainError, first_line
from roundoff.experiments.engine import run_tasks
from roundoff.experiments.launches import Launch, Speed
from roundoff.experiments.measure_launch import SpeedTask, measure_launch
from roundoff.experiments.task import Task
from roundoff.train import TrainConfig

_FOR_EVER = 10**6

OnSpeed = Callable[[Speed], None]


def launches(
    *, recipes: Sequence[str], workers: Sequence[int], threads: Sequence[int], procs: Sequence[int]
) -> list[Launch]:
    """Return every combination, the last varying fastest."""
    return [
        Launch(recipe=recipe, procs=ranks, threads=of_rank, workers=loaders)
        for recipe, ranks, of_rank, loaders in itertools.product(recipes, procs, threads, workers)
    ]


def measure_throughput(
    common: TrainConfig, tried: Sequence[Launch], *, seconds: float = 5.0, on_speed: OnSpeed | None = None
) -> list[Speed]:
    """Train for so many seconds with each launch, one after another, each in a fresh process.

    Nothing is written and nothing is evaluated. A launch that cannot be (a batch that ranks cannot share, a recipe
    that does not exist) or that crashes is a `Speed` that says so.
    """
    speeds = []
    for launch in tried:
        speed = _measure(common, launch, seconds=seconds)
        speeds.append(speed)
        if on_speed is not None:
            on_speed(speed)
    return speeds


def _measure(common: TrainConfig, launch: Launch, *, seconds: float) -> Speed:
    try:
        config = replace(launch.config(common), epochs=_FOR_EVER, steps=None)
    except TrainError as error:
        return Speed(launch=launch, failure=first_line(error))
    argument = SpeedTask(config=config, seconds=seconds)
    (outcome,) = run_tasks([Task(name=launch.recipe, call=measure_launch, argument=argument)], retries=0)
    if outcome.failure is not None:
        return Speed(launch=launch, failure=outcome.failure)
    return Speed(launch=launch, **outcome.value)
