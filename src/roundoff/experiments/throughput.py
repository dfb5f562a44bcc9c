"""Ways to launch a training, and the speed of each: the rows of `roundoff throughput`."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from roundoff.errors import RoundoffError, TrainError, first_line
from roundoff.experiments.engine.process_pool import Task
from roundoff.experiments.engine.scheduler import run_tasks
from roundoff.runs import JsonValue, Metrics
from roundoff.train.config import TrainConfig
from roundoff.train.launch import launch_ranks
from roundoff.train.ranks import RankPlace, Ranks, joined_ranks, place_here
from roundoff.train.run_log import EpochLines, RunLog
from roundoff.train.trainer import Trainer

_WARM_STEPS = 2
"""The first steps are slower: memory allocation, caches, workers that are starting."""

_MIN_STEPS = 3


def measure_launch(config: TrainConfig, *, seconds: float) -> dict[str, Any]:
    """Train for about this many seconds, in this process or in new ranks; return the fields of a `Speed`."""
    measure = _MeasureRank(budget=seconds, began=time.time())
    answer = launch_ranks(config, measure) if config.procs > 1 else measure(config, place_here(config))
    assert isinstance(answer, dict)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasureRank:
    """One rank of the timed training, as a function that can be pickled."""

    budget: float
    began: float

    def __call__(self, config: TrainConfig, place: RankPlace) -> dict[str, Any]:
        with joined_ranks(config, place) as ranks:
            training = Trainer(config, ranks)
            watch = _Stopwatch(ranks, budget=self.budget)
            training.batches = _TimedBatches(training.batches, watch)  # type: ignore[assignment]
            shown = EpochLines(shown=False, num_epochs=1, total_steps=1, is_text=config.is_text)
            try:
                with RunLog(config, ranks) as journal:
                    training.run(journal, shown, watch.step)
            except _TimeUpError:
                pass
            cpu = sum(ranks.from_all(watch.cpu_share()))
        return {
            "samples_per_second": watch.steps_per_second() * config.batch_size,
            "first_batch_seconds": watch.first_batch - self.began,
            "cpu_share": cpu or None,
            "steps": watch.num_steps,
        }


class _TimeUpError(Exception):
    """Raised inside the training when its time is up."""


@dataclass(slots=True)
class _Stopwatch:
    """Counts steps and time; all ranks stop after the same step, which the first rank decides."""

    ranks: Ranks
    budget: float
    first_batch: float = 0.0
    num_steps: int = 0
    last_step: int | None = None
    times: list[float] = field(default_factory=list)
    cpu_times: list[float] = field(default_factory=list)

    def notice_batch(self) -> None:
        """Note when the first batch arrived."""
        if not self.first_batch:
            self.first_batch = time.time()

    def step(self, metrics: Metrics) -> None:
        """Count a step; raise `_TimeUpError` after the last one."""
        self.num_steps += 1
        self.times.append(time.perf_counter())
        self.cpu_times.append(_cpu_seconds())
        if self.num_steps == _WARM_STEPS:
            seconds = max(self.times[-1] - self.times[0], 1e-6) / (_WARM_STEPS - 1)
            wanted = _WARM_STEPS + max(_MIN_STEPS, round(self.budget / seconds))
            self.last_step = self.ranks.from_first(wanted)
        if self.last_step is not None and self.num_steps >= self.last_step:
            raise _TimeUpError

    def steps_per_second(self) -> float:
        """Return the speed after the warm-up, or over all steps of a shorter training."""
        start = _WARM_STEPS - 1 if self.num_steps > _WARM_STEPS else 0
        if self.num_steps - start < 2:
            raise RoundoffError.explain(
                "The training ended before its speed could be measured.",
                why=f"it has {self.num_steps} steps.",
                fix="use a smaller --batch-size, or more --epochs.",
            )
        return (self.num_steps - 1 - start) / (self.times[-1] - self.times[start])

    def cpu_share(self) -> float:
        """Return how many cores this rank and its workers keep busy."""
        if len(self.times) < 2:
            return 0.0
        return max(0.0, self.cpu_times[-1] - self.cpu_times[0]) / (self.times[-1] - self.times[0])


class _TimedBatches:
    """Passes batches through, and notifies the stopwatch when the first one arrives."""

    def __init__(self, batches: Any, watch: _Stopwatch) -> None:
        self._batches, self._watch = batches, watch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._watch.notice_batch()
            yield batch

    def __len__(self) -> int:
        return len(self._batches)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers, if the system reports it."""
    return time.process_time() + sum(map(_cpu_seconds_of, multiprocessing.active_children()))


def _cpu_seconds_of(process: Any) -> float:
    try:
        words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    user, system = int(words[11]), int(words[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


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
    task = Task(name=launch.recipe, call=partial(measure_launch, seconds=seconds), argument=config)
    (outcome,) = run_tasks([task], retries=0)
    if outcome.failure is not None:
        return Speed(launch=launch, failure=outcome.failure)
    return Speed(launch=launch, **outcome.value)
