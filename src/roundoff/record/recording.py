"""Recording: a block inside which every op of the chosen steps goes into a run folder."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from roundoff.record.event_selection import EventSelection, Level, RecordingSettings, check_sites
from roundoff.record.loop.sites import Sites
from roundoff.record.process_info import describe_process, rank
from roundoff.record.reference import ReferenceKind
from roundoff.record.session import Recording
from roundoff.runs import JsonValue, RunWriter
from roundoff.words import plural


class IncompleteRecordingWarning(UserWarning):
    """The block ended and something it was asked for never came."""


@contextlib.contextmanager
def recording(
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    to: str | Path,
    steps: Collection[int] | int | None = None,
    sites: Sequence[str] | str | None = None,
    ops: Sequence[str] | str | None = None,
    phases: Sequence[str] | str | None = None,
    level: Level = "summary",
    inputs: bool = False,
    histograms: bool = False,
    reference: ReferenceKind | None = None,
    stacks: bool = False,
    enabled: bool = True,
    strict: bool = False,
    command: tuple[str, ...] | None = None,
    seed: int | None = None,
    settings: dict[str, JsonValue] | None = None,
) -> Iterator[Recording | None]:
    """Record every op of forward, backward and optimizer inside the block into the run folder `to`.

    Losses, gradients and weights are bit for bit what they are without it. Compiled models run eagerly in the recorded
    steps, which agrees with the compiled ones within their format. Hooks are gone when the block ends, also by an
    exception; if recording itself fails, it stops with one warning and the training goes on.

    Args:
        model: names sites and parameters from the start; without it models are met as they are called.
        to: the run folder to make; one that holds a run already is an error.
        steps: numbers of the steps to record, `range(3)`; None for all.
        sites: shell patterns of sites, `"blocks.*"`.
        ops: shell patterns of ops, `"aten.*mm"`, `"softmax"`.
        phases: of forward, backward, optimizer, eval.
        level: "summary" for numbers, "tensors" for the whole tensors as well.
        inputs: record what goes into each op, too.
        histograms: count the magnitudes of each result by powers of two, for the page of the run.
        reference: "fp64" or "cpu": run each op again on its own inputs and keep the error it introduced.
        stacks: keep the source line of each op.
        enabled: False makes the block do nothing at all.
        strict: a failure of the recording raises instead of warning.
        command: what run.json gives as the command; the process's own by default.
        seed: what run.json gives as the seed; torch's initial seed by default.
        settings: further facts for run.json.
    """
    if not enabled:
        yield None
        return
    wanted = RecordingSettings(
        selection=EventSelection.of(steps=steps, sites=sites, ops=ops, phases=phases),
        level=level, inputs=inputs, histograms=histograms, reference=reference, stacks=stacks, strict=strict,
    )  # fmt: skip
    session = start_recording(model, to=to, settings=wanted, command=command, seed=seed, facts=settings)
    with session.running():
        yield session
    if session.complaints:
        text = "\n  ".join(session.complaints)
        num_steps = plural(session.num_recorded, "step")
        warnings.warn(
            f"roundoff recorded {num_steps} to '{session.folder}', but\n  {text}",
            IncompleteRecordingWarning,
            stacklevel=3,
        )


def start_recording(
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    to: str | Path | Callable[[], Path],
    settings: RecordingSettings,
    command: tuple[str, ...] | None = None,
    seed: int | None = None,
    facts: Mapping[str, JsonValue] | None = None,
) -> Recording:
    """Check what was requested, make the run folder, and return the recording, not yet running; see `recording`.

    `to` may be a function that chooses the folder; it is called when everything else has been checked. `facts` go into
    run.json.
    """
    settings.check()
    sites = Sites()
    for given in [model] if isinstance(model, nn.Module) else model or ():
        sites.add_model(given)
    if sites.models and settings.selection.sites:
        check_sites(settings.selection.sites, sites.names)
    info = describe_process(seed=seed, settings={**settings.to_json(), **(facts or {})}, command=command)
    writer = RunWriter.create(to() if callable(to) else to, info, rank=rank(), strict=settings.strict)
    return Recording(writer, settings, sites=sites)
