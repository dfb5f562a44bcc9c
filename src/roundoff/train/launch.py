"""`--procs`: starts the ranks of this machine, and stops all of them when one fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from roundoff.errors import RoundoffError, TrainError
from roundoff.train.config import TrainConfig
from roundoff.train.ranks import LostContactError, RankPlace

TrainRank = Callable[[TrainConfig, RankPlace], Any]

_GRACE_SECONDS = 1.0
"""How long to wait, after a rank has lost contact, for the failure of the rank that caused it."""

_EXIT_SECONDS = 5.0
"""How long a rank may take to exit after its result, and after it was terminated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    number: int
    process: BaseProcess
    answer: Connection


def launch_ranks(config: TrainConfig, train_rank: TrainRank) -> Any:
    """Call `train_rank` in `config.procs` new processes and return the result of the first.

    They are new interpreters (spawned, not forked), so `train_rank` must be picklable. A `RoundoffError` in one of them
    is raised here; if one dies for another reason, a `TrainError` says which. In both cases no process is left running.
    """
    with tempfile.TemporaryDirectory(prefix="roundoff-") as folder, _leaving_on_sigterm():
        if config.dist_url is None:
            config = replace(config, dist_url=f"file://{Path(folder) / 'meeting-point'}")
        ranks: list[_Rank] = []
        patience = 0.0
        try:
            for local_rank in range(config.procs):
                ranks.append(_start(config, train_rank, local_rank))
            answers = _answers(ranks)
            patience = _EXIT_SECONDS
            return answers[0]
        finally:
            _end(ranks, patience_seconds=patience)


def _start(config: TrainConfig, train_rank: TrainRank, local_rank: int) -> _Rank:
    place = RankPlace(
        rank=config.rank + local_rank, num_ranks=config.num_ranks, local_rank=local_rank, num_local=config.procs
    )
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(config, place, train_rank, writer), daemon=False)
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainError.explain(
            "The ranks could not be started.",
            why=f"on_step cannot be pickled: {error}.",
            fix="with procs above 1, on_step must be a function at the top level of a module.",
        ) from error
    writer.close()
    return _Rank(number=place.rank, process=process, answer=reader)


def _work(config: TrainConfig, place: RankPlace, train_rank: TrainRank, writer: Connection) -> None:
    """Run one rank, in its process."""
    try:
        answer = train_rank(replace(config, procs=1, rank=place.rank, world_size=place.num_ranks), place)
    except RoundoffError as error:
        answer = error
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    writer.send(answer)


def _answers(ranks: Sequence[_Rank]) -> list[Any]:
    """Wait for the results of all ranks, or for the first failure."""
    answers: dict[int, Any] = {}
    failures: list[RoundoffError] = []
    waiting = {rank.answer: rank for rank in ranks}
    while waiting and not failures:
        _collect(waiting, answers, failures, timeout=None)
    if failures:
        _collect(waiting, answers, failures, timeout=_GRACE_SECONDS)
        raise min(failures, key=lambda error: isinstance(error, LostContactError))
    return [answers[rank.number] for rank in ranks]


def _collect(
    waiting: dict[Connection, _Rank], answers: dict[int, Any], failures: list[RoundoffError], *, timeout: float | None
) -> None:
    # Processes as well as pipes: a child of a rank may hold its pipe open after the rank has died.
    ready = wait([*waiting, *(rank.process.sentinel for rank in waiting.values())], timeout)
    for pipe, rank in list(waiting.items()):
        if pipe not in ready and rank.process.sentinel not in ready:
            continue
        del waiting[pipe]
        try:
            answer = pipe.recv() if pipe.poll() else _death_of(rank)
        except EOFError:
            answer = _death_of(rank)
        if isinstance(answer, RoundoffError):
            failures.append(answer)
        else:
            answers[rank.number] = answer


def _death_of(rank: _Rank) -> TrainError:
    rank.process.join(_EXIT_SECONDS)
    code = rank.process.exitcode or 0
    how = f"it exited with code {code}; its output is above."
    if code < 0:
        name = signal.Signals(-code).name
        how = f"it was killed by {name}" + (" (possibly out of memory)." if name == "SIGKILL" else ".")
    return TrainError.explain(f"Rank {rank.number} died; the other ranks were stopped.", why=how)


def _end(ranks: Sequence[_Rank], *, patience_seconds: float) -> None:
    """Wait for all processes; those that do not exit in time are terminated, then killed."""
    _join(ranks, patience_seconds)
    for rank in ranks:
        if rank.process.is_alive():
            rank.process.terminate()
    _join(ranks, _EXIT_SECONDS)
    for rank in ranks:
        if rank.process.is_alive():
            rank.process.kill()
            rank.process.join()
        rank.answer.close()


def _join(ranks: Sequence[_Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for rank in ranks:
        rank.process.join(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Make SIGTERM run the `finally` clauses of this process, so that no rank is left running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
