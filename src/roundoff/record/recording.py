"""Recording: a block inside which every op of the chosen steps goes into a run folder."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

from torch import nn

from roundoff.errors import RecordError
from roundoff.record.event_selection import EventSelection, check_sites
from roundoff.record.loop.sites import Sites
from roundoff.record.process_info import describe_process, rank
from roundoff.record.reference import Reference, ReferenceKind
from roundoff.record.session import Recording
from roundoff.record.source_lines import Sources
from roundoff.runs import JsonValue, RunWriter
from roundoff.words import plural

Level = Literal["summary", "tensors"]
LEVELS: tuple[Level, ...] = ("summary", "tensors")


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
    session = start_recording(
        model, to=to, steps=steps, sites=sites, ops=ops, phases=phases, level=level, inputs=inputs,
        histograms=histograms, reference=reference, stacks=stacks, strict=strict, command=command, seed=seed,
        settings=settings,
    )  # fmt: skip
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
    model: nn.Module | Sequence[nn.Module] | None,
    *,
    to: str | Path | Callable[[], Path],
    steps: Collection[int] | int | None,
    sites: Sequence[str] | str | None,
    ops: Sequence[str] | str | None,
    phases: Sequence[str] | str | None,
    level: Level,
    inputs: bool,
    histograms: bool,
    reference: ReferenceKind | None,
    stacks: bool,
    strict: bool,
    command: tuple[str, ...] | None,
    seed: int | None,
    settings: dict[str, JsonValue] | None,
) -> Recording:
    """Check what was asked for, make the run folder, and return the recording, not yet running; see `recording`.

    `to` may be a function that chooses the folder; it is called when everything else has been checked.
    """
    if level not in LEVELS:
        raise RecordError.explain(
            f"There is no level '{level}'.", why=f"the levels are {', '.join(LEVELS)}.", fix="use one of them."
        )
    if reference not in (None, "fp64", "cpu"):
        raise RecordError.explain(
            f"There is no reference '{reference}'.", why="the references are fp64 and cpu.", fix="use one of them."
        )
    selection = EventSelection.of(steps=steps, sites=sites, ops=ops, phases=phases)
    named = Sites()
    for given in [model] if isinstance(model, nn.Module) else model or ():
        named.add_model(given)
    if named.models and selection.sites:
        check_sites(selection.sites, named.names)
    asked: dict[str, JsonValue] = {
        "level": level, "inputs": inputs, "histograms": histograms, "reference": reference, "stacks": stacks,
    }  # fmt: skip
    info = describe_process(seed=seed, settings={**asked, **(settings or {})}, command=command)
    return Recording(
        writer=RunWriter.create(to() if callable(to) else to, info, rank=rank(), strict=strict),
        selection=selection,
        sites=named,
        with_tensors=level == "tensors",
        inputs=inputs,
        histograms=histograms,
        reference=Reference(reference) if reference else None,
        sources=Sources() if stacks else None,
        strict=strict,
    )
