"""What the processes of one timed training do: train for some seconds, and return the speed."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundoff.errors import RoundoffError
from roundoff.runs import Metrics
from roundoff.train.config import TrainConfig
from roundoff.train.launch import launch_ranks
from roundoff.train.progress import EpochLines
from roundoff.train.ranks import RankPlace, Ranks, joined_ranks, place_here
from roundoff.train.run_log import RunLog
from roundoff.train.trainer import Training

_WARM_STEPS = 2
"""The first steps are slower: memory allocation, caches, workers that are starting."""

_MIN_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTask:
    """One training to be timed, as it is sent to its process."""

    config: TrainConfig
    seconds: float


def measure_launch(task: SpeedTask) -> dict[str, Any]:
    """Train for about this many seconds, in this process or in new ranks; return the fields of a `Speed`."""
    measure = _MeasureRank(budget=task.seconds, began=time.time())
    if task.config.procs > 1:
        answer = launch_ranks(task.config, measure)
    else:
        answer = measure(task.config, place_here(task.config))
    assert isinstance(answer, dict)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasureRank:
    """One rank of the timed training, as a function that can be pickled."""

    budget: float
    began: float

    def __call__(self, config: TrainConfig, place: RankPlace) -> dict[str, Any]:
        with joined_ranks(config, place) as ranks:
            training = Training(config, ranks)
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
    """Passes batches through, and tells the stopwatch when the first one arrives."""

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
