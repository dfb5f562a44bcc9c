"""Recording: a block inside which every op of the chosen steps goes into a run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from roundoff.record.event_selection import EventSelection, Level, RecordingSettings, check_sites
from roundoff.record.loop.sites import Sites
from roundoff.record.process_info import create_run
from roundoff.record.reference import ReferenceKind
from roundoff.record.script import unless_taken
from roundoff.record.session import Recording
from roundoff.record.structure import StructureWriter
from roundoff.runs import JsonValue
from roundoff.words import plural


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

    Losses, gradients and weights are bit for bit the same as without it. Compiled models run eagerly in the recorded
    steps, which agrees with the compiled ones within their format. Hooks are removed when the block ends, also by an
    exception; if recording itself fails, it stops with one line on stderr and the training goes on.

    Args:
        model: names sites and parameters from the start; without it, models are named when they are first called.
        to: the run folder to create; an error if it already holds a run, and in a notebook numbered then.
        steps: numbers of the steps to record, `range(3)`; None for all.
        sites: shell patterns of sites, `"blocks.*"`.
        ops: shell patterns of ops, `"aten.*mm"`, `"softmax"`.
        phases: any of forward, backward, optimizer, eval.
        level: "summary" for statistics, "tensors" for whole tensors too.
        inputs: record the inputs of each op too.
        histograms: count the magnitudes of each result by powers of two, for the report.
        reference: "fp64" or "cpu": run each op again on the same inputs and record the error that it introduced.
        stacks: record the source line of each op.
        enabled: False makes the block do nothing at all.
        strict: a failure of the recording is raised instead of reported.
        command: the command in run.json; by default that of this process.
        seed: the seed in run.json; by default torch's initial seed.
        settings: further facts for run.json.
    """
    if not enabled:
        yield None
        return
    wanted = RecordingSettings(
        selection=EventSelection.of(steps=steps, sites=sites, ops=ops, phases=phases),
        level=level, inputs=inputs, histograms=histograms, reference=reference, stacks=stacks, strict=strict,
    )  # fmt: skip
    session = start_recording(model, to=unless_taken(to), settings=wanted, command=command, seed=seed, facts=settings)
    with session.running():
        yield session
    if session.complaints:
        text = " ".join(session.complaints)
        num_steps = plural(session.num_recorded, "step")
        session.say(f"recorded {num_steps} to '{session.folder}', but {text}")


def start_recording(
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    to: str | Path | Callable[[], Path],
    settings: RecordingSettings,
    command: tuple[str, ...] | None = None,
    seed: int | None = None,
    facts: Mapping[str, JsonValue] | None = None,
) -> Recording:
    """Check the request, create the run folder, and return a recording that is not running yet; see `recording`.

    `to` may be a function that chooses the folder; it is called when everything else has been checked. `facts` go into
    run.json.
    """
    settings.check()
    sites = Sites()
    for given in [model] if isinstance(model, nn.Module) else model or ():
        sites.add_model(given)
    if sites.models and settings.selection.sites:
        check_sites(settings.selection.sites, sites.names)
    writer = create_run(
        to,
        seed=seed,
        settings={**settings.to_json(), **(facts or {})},
        command=command,
        stores_data=settings.stores_data,
        strict=settings.strict,
    )
    return Recording(writer, settings, sites=sites, structure=StructureWriter(writer, sites))
