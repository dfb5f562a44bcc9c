"""Runs many tasks, each in its own process, on this machine or on a cluster, and retries those whose process died."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from roundoff.errors import UsageError
from roundoff.experiments.engine.process_pool import (
    OnOutcome,
    ProcessPool,
    Task,
    TaskOutcome,
    WorkerReply,
    Workers,
    error_in_one_line,
)

Backend = Literal["pool", "ray"]
"""Where tasks can run: in processes on this machine, or on a Ray cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskAttempt:
    place: int
    task: Task
    number: int = 1


_Finish = Callable[[int, TaskOutcome], None]


def run_tasks(
    tasks: Iterable[Task], *, jobs: int = 1, on: Backend = "pool", retries: int = 1, on_result: OnOutcome | None = None
) -> list[TaskOutcome]:
    """Run every task, `jobs` at a time, each in its own process; return the outcomes in the order of `tasks`.

    A call that raises counts as failed. A task whose process dies (killed, crashed, its machine lost) is retried up to
    `retries` times, on a cluster possibly on another machine. `on_result` is called in this process as soon as a task
    is done. No process is left running, however this ends.

    With `jobs=0` the calls run in this process, one after another. This is for debugging: a crash ends everything.

    Raises:
        UsageError: `jobs` is 0 and the backend is a cluster.
        ClusterError: Ray is not installed, or its cluster cannot be reached.
    """
    outcomes: dict[int, TaskOutcome] = {}

    def finish(place: int, outcome: TaskOutcome) -> None:
        outcomes[place] = outcome
        if on_result is not None:
            on_result(outcome)

    waiting = deque(_TaskAttempt(place=place, task=task) for place, task in enumerate(tasks))
    if jobs < 1:
        _run_in_this_process(waiting, on=on, finish=finish)
    elif waiting:
        with closing(_make_workers(on)) as workers:
            _run_in_workers(waiting, workers, jobs=jobs, retries=retries, finish=finish)
    return [outcomes[place] for place in sorted(outcomes)]


@contextmanager
def connected_to(on: Backend) -> Iterator[None]:
    """Stay connected to the cluster inside the block, so that many calls of `run_tasks` share one connection.

    Raises:
        ClusterError: Ray is not installed, or its cluster cannot be reached.
    """
    if on == "pool":
        yield
        return
    # Imported here: Ray is an optional dependency.
    from roundoff.experiments.engine.ray_cluster import connected_to_ray

    with connected_to_ray():
        yield


def _run_in_this_process(waiting: Iterable[_TaskAttempt], *, on: Backend, finish: _Finish) -> None:
    if on != "pool":
        raise UsageError.explain(
            "--jobs 0 does not work on a cluster.", why="0 jobs run everything in this process.", fix="--jobs 1"
        )
    for each in waiting:
        began = time.perf_counter()
        try:
            outcome = TaskOutcome(task=each.task, value=each.task.call(each.task.argument))
        except Exception as error:
            outcome = TaskOutcome(task=each.task, failure=error_in_one_line(error))
        finish(each.place, replace(outcome, seconds=time.perf_counter() - began))


def _run_in_workers(
    waiting: deque[_TaskAttempt], workers: Workers, *, jobs: int, retries: int, finish: _Finish
) -> None:
    running: dict[int, _TaskAttempt] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            begun = waiting.popleft()
            packed = pickle.dumps((begun.task.call, begun.task.argument))
            running[workers.start(packed, log=begun.task.log)] = begun
        number, answer = workers.next_answer()
        done = running.pop(number)
        if answer.has_died and done.number <= retries:
            waiting.append(replace(done, number=done.number + 1))
        else:
            finish(done.place, _make_outcome(done, answer))


def _make_workers(on: Backend) -> Workers:
    if on == "pool":
        return ProcessPool()
    from roundoff.experiments.engine.ray_cluster import RayWorkers

    return RayWorkers()


def _make_outcome(done: _TaskAttempt, answer: WorkerReply) -> TaskOutcome:
    failure = answer.failure
    if failure is not None and done.number > 1:
        failure += f" ({done.number} tries)"
    return TaskOutcome(
        task=done.task,
        value=None if answer.packed is None else pickle.loads(answer.packed),
        failure=failure,
        seconds=answer.seconds,
        num_tries=done.number,
    )
