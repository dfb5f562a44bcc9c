"""Watching: a block inside which a training is followed, and anything that cannot be right is explained."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from roundoff.errors import RecordError
from roundoff.notebook_cells import is_notebook, notebook_name
from roundoff.record.loop.sites import Sites
from roundoff.record.process_info import create_run, rank
from roundoff.record.script import Script, folder_for, unless_taken
from roundoff.replay.investigator import OnAnomaly
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import JsonValue
from roundoff.watch.process.supervise import ProcessGuard
from roundoff.watch.quiet_watch import QuietWatch
from roundoff.watch.settings import ON_ANOMALY, WatchSettings
from roundoff.watch.watch import Watch


@contextlib.contextmanager
def watching(
    model: nn.Module | Sequence[nn.Module] | None = None,
    optimizer: Optimizer | None = None,
    *,
    to: str | Path | None = None,
    budget: float = 0.02,
    on_anomaly: OnAnomaly = "report",
    snapshot_memory: int | None = None,
    kept_batches: int = 2,
    stores_data: bool = True,
) -> Iterator[Watch]:
    """Watch the training inside the block and keep what was seen in a run folder.

    Losses, gradients and weights are bit for bit what they are without it. When a loss, gradient or weight is not
    finite, or when a step raises, it is replayed op by op and the origin is kept in the run; `verdict()` of the watch
    says what it was.

    Args:
        model: names sites and parameters from the start; without it models are met as they are called.
        optimizer: whose state to keep from the start; without it optimizers are found when training begins.
        to: the run folder to make; by default the next free one in `runs/`, named after the script. One that holds a
            run already is an error; in a notebook the new run gets a number, `to-1`.
        budget: the share of the training's time that watching may take.
        on_anomaly: "report" goes on, "stop" ends the training, "skip" undoes the step and goes on.
        snapshot_memory: the most bytes that snapshots and replays may take; by default a quarter of what is free.
        kept_batches: save a few samples of the first N batches in the run (0: none).
        stores_data: with False no samples, batches or other tensors are stored in the run, also after an anomaly; then
            a bad step cannot be replayed in another process.
    """
    settings = WatchSettings(
        budget=budget,
        on_anomaly=on_anomaly,
        snapshot_bytes=snapshot_memory,
        kept_batches=kept_batches,
        stores_data=stores_data,
    )
    with watching_with(settings, model, optimizer, to=to) as watch:
        yield watch


@contextlib.contextmanager
def watching_with(
    settings: WatchSettings,
    model: nn.Module | Sequence[nn.Module] | None = None,
    optimizer: Optimizer | None = None,
    *,
    to: str | Path | None = None,
) -> Iterator[Watch]:
    """Watch the training inside the block, with all settings given; see `watching`."""
    guard = ProcessGuard()
    watch = start_watching(
        model, to=unless_taken(to) if to is not None else next_folder, settings=settings, guard=guard
    )
    if optimizer is not None:
        watch.add_optimizer(optimizer)
    try:
        with watch.running():
            try:
                yield watch
            except Exception as error:
                watch.note_exception(error)
                raise
    finally:
        guard.close()


def start_watching(
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    to: str | Path | Callable[[], Path],
    settings: WatchSettings,
    command: tuple[str, ...] | None = None,
    seed: int | None = None,
    facts: dict[str, JsonValue] | None = None,
    guard: ProcessGuard | None = None,
) -> Watch:
    """Check the settings, create the run folder, and return the watch, not yet running; see `watching`."""
    began = time.perf_counter()
    if settings.on_anomaly not in ON_ANOMALY:
        raise RecordError.explain(
            f"There is no way '{settings.on_anomaly}' to act on an anomaly.",
            why=f"the ways are {', '.join(ON_ANOMALY)}.",
            fix="use one of them.",
        )
    board = TensorBoard(settings.tensorboard) if settings.tensorboard is not None and rank() == 0 else None
    sites = Sites()
    for given in [model] if isinstance(model, nn.Module) else model or ():
        sites.add_model(given)
    requested: dict[str, JsonValue] = {"watch": True, "budget": settings.budget, "on_anomaly": settings.on_anomaly}
    described = {**requested, **(facts or {})}
    writer = create_run(to, seed=seed, settings=described, command=command, stores_data=settings.stores_data)
    guard = guard or ProcessGuard()
    guard.start(writer.folder, rank=writer.rank, is_sync=bool((facts or {}).get("sync")), has_ops=settings.ops)
    watch = QuietWatch(writer, settings, sites=sites, flight=guard.flight, board=board)
    watch.count_start(began)
    return watch


def next_folder() -> Path:
    """Make the next free folder in `runs/`, named after the script that is running; all ranks get the same."""
    stem = notebook_name() if is_notebook() else Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    return folder_for(Script(target=stem or "train"), name=None, base=Path("runs"))
