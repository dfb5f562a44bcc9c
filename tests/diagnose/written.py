"""Run folders of one or several ranks, written by hand: tables of parameters, hashes, metrics, calls, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundoff.runs import (
    Anomaly,
    BatchFacts,
    Call,
    HashColumns,
    Interned,
    Metrics,
    ParameterColumns,
    Run,
    RunInfo,
    RunWriter,
    Structure,
)

Row = Mapping[str, Any]


def write_rank(
    folder: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    structure: Structure | None = None,
    rows: Sequence[Row] = (),
    hashes: Sequence[tuple[int, str, str, int]] = (),
    metrics: Sequence[Metrics] = (),
    calls: Sequence[Call] = (),
    batches: Sequence[BatchFacts] = (),
    anomalies: Sequence[Anomaly] = (),
    probes: Sequence[Row] = (),
) -> Run:
    """Write what one rank leaves; `rows` are of parameters, `hashes` are (step, kind, name, hash)."""
    with RunWriter.create(folder, RunInfo(ranks=ranks), rank=rank, strict=True) as writer:
        if structure is not None:
            writer.write(structure)
        for row in rows:
            writer.write_parameters(_columns(row))
        if hashes:
            writer.write_hashes(_hash_columns(hashes))
        for metric in metrics or [Metrics(step=0, loss=1.0)]:
            writer.write(metric)
        for call in calls:
            writer.write(call)
        for batch in batches:
            writer.write(batch)
        for anomaly in anomalies:
            writer.write(anomaly)
        for probe in probes:
            writer.write_probe(probe)
    return Run.open(folder)


def _columns(row: Row) -> ParameterColumns:
    numbers = {
        name: np.array([value]) for name, value in row.items() if name not in ("step", "parameter", "num_elements")
    }
    return ParameterColumns(
        step=np.array([row["step"]], dtype=np.int32),
        parameter=Interned.of([row["parameter"]]),
        site=Interned.of([row["parameter"].rpartition(".")[0]]),
        num_elements=np.array([row.get("num_elements", 100)], dtype=np.int64),
        **{"l2": np.array([1.0]), "absmax": np.array([1.0]), **numbers},
    )


def _hash_columns(hashes: Sequence[tuple[int, str, str, int]]) -> HashColumns:
    steps, kinds, names, numbers = zip(*hashes, strict=True)
    return HashColumns(
        step=np.array(steps, dtype=np.int32),
        microbatch=np.zeros(len(steps), dtype=np.int16),
        kind=Interned.of(list(kinds)),
        name=Interned.of(list(names)),
        hash=np.array(numbers, dtype=np.uint64),
    )
