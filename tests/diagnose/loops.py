"""Runs written by hand: what a loop did and what each step came to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundoff.runs import Call, CallKind, Metrics, Run, RunInfo, RunWriter, call_detail

Told = tuple[CallKind, dict[str, Any]]


def call(name: CallKind, **detail: Any) -> Told:
    return name, detail


def written(
    folder: Path,
    steps: Sequence[Sequence[Told]] = (),
    *,
    metrics: Sequence[Metrics] = (),
    probes: Sequence[dict[str, Any]] = (),
) -> Run:
    """Write the calls of each step, its metrics, and probes."""
    with RunWriter.create(folder, RunInfo()) as writer:
        for step, calls in enumerate(steps):
            for name, detail in calls:
                writer.write(Call(step=step, call=name, detail=call_detail(name, detail)))
        for one in metrics:
            writer.write(one)
        for probe in probes:
            writer.write_probe(probe)
    return Run.open(folder)
