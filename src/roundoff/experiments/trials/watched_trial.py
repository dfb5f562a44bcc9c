"""A trial that runs under a watch: its run folder, its result, and its seeds."""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from roundoff.experiments.trials.trial import TrialResult
from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings


@contextlib.contextmanager
def shifting_seeds(by: int) -> Iterator[None]:
    """Add `by` to every integer seed that the script gives to Python, numpy and torch inside the block.

    This shows the noise of a script that sets its own seed. Generator objects that the script makes itself
    (`torch.Generator`, `numpy.random.default_rng`) are left alone.
    """
    if not by:
        yield
        return
    import numpy as np
    import torch

    places: list[tuple[Any, str]] = [
        (random, "seed"),
        (np.random, "seed"),
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
    ]
    with contextlib.ExitStack() as restoring:
        for module, name in places:
            original = getattr(module, name)
            restoring.callback(setattr, module, name, original)
            setattr(module, name, _shift_seed(original, by))
        yield


def _shift_seed(seed: Callable[..., Any], by: int) -> Callable[..., Any]:
    @functools.wraps(seed)
    def seed_with_another(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int):
            args = ((args[0] + by) % 2**32, *args[1:])
        kwargs = {key: (value + by) % 2**32 if isinstance(value, int) else value for key, value in kwargs.items()}
        return seed(*args, **kwargs)

    return seed_with_another


RUN_NAME = "run"
"""The name of the run folder inside the folder of a trial."""


def empty_run_folder(trial_folder: Path) -> Path:
    """Create the folder of a trial and return where its run goes; what an interrupted attempt left there is removed."""
    run_folder = trial_folder / RUN_NAME
    shutil.rmtree(run_folder, ignore_errors=True)
    trial_folder.mkdir(parents=True, exist_ok=True)
    return run_folder


def watch_settings(*, with_rules: bool) -> WatchSettings:
    """Return how a trial is watched: only its losses, or everything that the rules need."""
    if with_rules:
        return WatchSettings()
    return WatchSettings(full_steps=0, recorded_steps=(), probe_seconds=0.0, max_replays=0)


def rules_found_in(run_folder: Path) -> tuple[str, ...]:
    """Diagnose a run, and return the codes of its findings, the verdict first."""
    # Imported here: most trials are judged by their losses.
    from roundoff.diagnose import diagnose_and_save

    run = Run.open(run_folder)
    diagnosis = diagnose_and_save(run)
    return tuple(finding.rule for finding in diagnosis.findings)


def result_of_run(run_folder: Path, *, exit_code: int, with_rules: bool) -> TrialResult:
    """Return the result of a script that was run under a watch."""
    metrics = Run.open(run_folder).metrics()
    eval_losses = [step.eval_loss for step in metrics if step.eval_loss is not None]
    return TrialResult(
        losses=tuple(step.loss for step in metrics if step.loss is not None),
        eval_loss=eval_losses[-1] if eval_losses else None,
        exit_code=exit_code,
        rules=rules_found_in(run_folder) if with_rules else (),
        folder=run_folder.parent,
    )
