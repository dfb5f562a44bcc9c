"""Ways to launch a training, and the speed of each: the rows of `roundoff throughput`."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace

from roundoff.errors import TrainError, first_line
from roundoff.experiments.engine.scheduler import run_tasks
from roundoff.experiments.engine.task import Task
from roundoff.experiments.throughput.timed_training import SpeedTask, measure_launch
from roundoff.runs import JsonValue
from roundoff.train import TrainConfig

_NOT_FOR_A_COMMAND = ("runs", "name", "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a training is launched; except for the recipe, this does not change what is learned."""

    recipe: str
    workers: int
    threads: int
    procs: int

    def config(self, common: TrainConfig) -> TrainConfig:
        """Return the training with this launch."""
        return replace(
            common, recipe=self.recipe, workers=self.workers, threads=self.threads, procs=self.procs, runs=None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a launch; numbers are None if it failed."""

    launch: Launch
    samples_per_second: float | None = None
    """Over all ranks, from the second step on."""
    first_batch_seconds: float | None = None
    """From the start of the training, without imports, to its first batch: reading data, starting workers and ranks."""
    cpu_share: float | None = None
    """The number of busy cores, ranks and their loader workers together; None if the system does not report it."""
    steps: int = 0
    failure: str | None = None

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return asdict(self)


def fastest(speeds: list[Speed]) -> Speed | None:
    """Return the launch with the most samples per second; None if all failed."""
    measured = [speed for speed in speeds if speed.samples_per_second is not None]
    return max(measured, key=lambda speed: speed.samples_per_second or 0.0, default=None)


def train_command(config: TrainConfig) -> str:
    """Return the command line that trains with `config`, without options that have their default.

    >>> train_command(TrainConfig(recipe="O2", threads=2, lr_scaling=False))
    'roundoff train --recipe O2 --no-lr-scaling --threads 2'
    """
    words = ["roundoff", "train"]
    for field in fields(TrainConfig):
        value = getattr(config, field.name)
        default = None if field.default is MISSING else field.default
        if value != default and field.name not in _NOT_FOR_A_COMMAND:
            words += _option(field.name, value)
    return shlex.join(words)


def _option(name: str, value: object) -> list[str]:
    if name == "timeout_seconds":
        name = "timeout"
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option] if value else [option.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [option, ",".join(map(str, value))]
    if value is None:
        return [option, "none"]
    return [option, str(value)]


_UNLIMITED_EPOCHS = 10**6

OnSpeed = Callable[[Speed], None]


def all_launches(
    *, recipes: Sequence[str], workers: Sequence[int], threads: Sequence[int], procs: Sequence[int]
) -> list[Launch]:
    """Return every combination; the number of workers varies fastest."""
    return [
        Launch(recipe=recipe, procs=ranks, threads=of_rank, workers=loaders)
        for recipe, ranks, of_rank, loaders in itertools.product(recipes, procs, threads, workers)
    ]


def measure_throughput(
    common: TrainConfig, tried: Sequence[Launch], *, seconds: float = 5.0, on_speed: OnSpeed | None = None
) -> list[Speed]:
    """Train for this many seconds with each launch, one after another, each in a new process.

    Nothing is written and nothing is evaluated. A launch that is invalid (a batch that ranks cannot share, an unknown
    recipe) or that crashes is a `Speed` that says so.
    """
    speeds = []
    for launch in tried:
        speed = _measure_one(common, launch, seconds=seconds)
        speeds.append(speed)
        if on_speed is not None:
            on_speed(speed)
    return speeds


def _measure_one(common: TrainConfig, launch: Launch, *, seconds: float) -> Speed:
    try:
        config = replace(launch.config(common), epochs=_UNLIMITED_EPOCHS, steps=None)
    except TrainError as error:
        return Speed(launch=launch, failure=first_line(error))
    argument = SpeedTask(config=config, seconds=seconds)
    (outcome,) = run_tasks([Task(name=launch.recipe, call=measure_launch, argument=argument)], retries=0)
    if outcome.failure is not None:
        return Speed(launch=launch, failure=outcome.failure)
    return Speed(launch=launch, **outcome.value)
