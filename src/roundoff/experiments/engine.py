"""Makes many calls, each in a process of its own, here or on a cluster, and again those whose process died."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

from roundoff.errors import UsageError
from roundoff.experiments.pool import ProcessPool
from roundoff.experiments.task import Answer, OnResult, Outcome, Task, Workers, error_in_one_line

Place = Literal["pool", "ray"]
PLACES: tuple[Place, ...] = get_args(Place)
"""Where tasks can run: in processes of this machine, or on a Ray cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    place: int
    task: Task
    number: int = 1


_Finish = Callable[[int, Outcome], None]


def run_tasks(
    tasks: Iterable[Task], *, jobs: int = 1, on: Place = "pool", retries: int = 1, on_result: OnResult | None = None
) -> list[Outcome]:
    """Make every call, `jobs` at a time, each in a process of its own; return the outcomes in the order of `tasks`.

    A call that raises has failed. A process that dies (killed, crashed, its machine gone) is tried again up to
    `retries` times, on a cluster perhaps elsewhere. `on_result` is called here, as soon as a task is done. However
    this ends, no process is left behind.

    0 jobs make the calls in this process, one after another: for debugging, since a crash takes everything with it.

    Raises:
        UsageError: 0 jobs on a cluster.
        ClusterError: there is no Ray, or its cluster cannot be reached.
    """
    outcomes: dict[int, Outcome] = {}

    def finish(place: int, outcome: Outcome) -> None:
        outcomes[place] = outcome
        if on_result is not None:
            on_result(outcome)

    waiting = deque(_Try(place=place, task=task) for place, task in enumerate(tasks))
    if jobs < 1:
        _call_here(waiting, on=on, finish=finish)
    elif waiting:
        with closing(_workers(on)) as workers:
            _call_elsewhere(waiting, workers, jobs=jobs, retries=retries, finish=finish)
    return [outcomes[place] for place in sorted(outcomes)]


@contextmanager
def connected(on: Place) -> Iterator[None]:
    """Stay connected to the cluster in this block, so that many calls of `run_tasks` share one connection.

    Raises:
        ClusterError: there is no Ray, or its cluster cannot be reached.
    """
    if on == "pool":
        yield
        return
    # Imported here: Ray is an extra.
    from roundoff.experiments.ray_cluster import connected_to_ray

    with connected_to_ray():
        yield


def _call_here(waiting: Iterable[_Try], *, on: Place, finish: _Finish) -> None:
    if on != "pool":
        raise UsageError.explain(
            "0 jobs and a cluster do not fit together.", why="0 jobs make all calls in this process.", fix="--jobs 1"
        )
    for each in waiting:
        began = time.perf_counter()
        try:
            outcome = Outcome(task=each.task, value=each.task.call(each.task.argument))
        except Exception as error:
            outcome = Outcome(task=each.task, failure=error_in_one_line(error))
        finish(each.place, replace(outcome, seconds=time.perf_counter() - began))


def _call_elsewhere(waiting: deque[_Try], workers: Workers, *, jobs: int, retries: int, finish: _Finish) -> None:
    running: dict[int, _Try] = {}
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
            finish(done.place, _outcome(done, answer))


def _workers(on: Place) -> Workers:
    if on == "pool":
        return ProcessPool()
    from roundoff.experiments.ray_workers import RayWorkers

    return RayWorkers()


def _outcome(done: _Try, answer: Answer) -> Outcome:
    failure = answer.failure
    if failure is not None and done.number > 1:
        failure += f" ({done.number} tries)"
    return Outcome(
        task=done.task,
        value=None if answer.packed is None else pickle.loads(answer.packed),
        failure=failure,
        seconds=answer.seconds,
        num_tries=done.number,
    )
