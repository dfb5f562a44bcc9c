"""Run folders written by hand: batches, calls, structures, probes, without a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundoff.runs import (
    BatchFacts,
    Call,
    Finding,
    HashColumns,
    Interned,
    Metrics,
    ModuleFacts,
    ParameterFacts,
    Run,
    RunInfo,
    RunWriter,
    Structure,
    TensorFacts,
    call_detail,
)

MODEL = ModuleFacts(site="<model>", kind="Sequential", training=True)


def write_run(
    folder: Path,
    *,
    batches: Sequence[BatchFacts] = (),
    calls: Sequence[Call] = (),
    metrics: Sequence[Metrics] = (),
    modules: Sequence[ModuleFacts] = (),
    parameters: Sequence[ParameterFacts] = (),
    hashes: Sequence[tuple[int, str, str, int]] = (),
    probes: Sequence[Mapping[str, Any]] = (),
) -> Run:
    """Write a run folder with what is given; `hashes` are (step, kind, name, hash)."""
    with RunWriter.create(folder, RunInfo(), strict=True) as writer:
        writer.write(Structure(step=0, modules=(MODEL, *modules), parameters=tuple(parameters)))
        for batch in batches:
            writer.write(batch)
        for call in calls:
            writer.write(call)
        for metric in metrics:
            writer.write(metric)
        for probe in probes:
            writer.write_probe(probe)
        if hashes:
            steps, kinds, names, numbers = zip(*hashes, strict=True)
            writer.write_hashes(
                HashColumns(
                    step=np.array(steps, dtype=np.int32),
                    microbatch=np.zeros(len(steps), dtype=np.int16),
                    kind=Interned.of(list(kinds)),
                    name=Interned.of(list(names)),
                    hash=np.array(numbers, dtype=np.uint64),
                )
            )
    return Run.open(folder)


def tensor(
    place: str = "<model>[0]", shape: tuple[int, ...] = (8, 16), dtype: str = "float32", **facts: Any
) -> TensorFacts:
    """Describe a tensor; without more, numbers of mean 0 and std 1."""
    return TensorFacts(
        place=place, shape=shape, dtype=dtype, **{"min": -3.0, "max": 3.0, "mean": 0.0, "std": 1.0, **facts}
    )


def labels(counts: Mapping[str, int], **facts: Any) -> TensorFacts:
    """Describe labels of classes."""
    return tensor("target", (sum(counts.values()),), "int64", counts=counts, is_target=True, **facts)


def epochs(*first_steps: int, num_steps: int, **detail: Any) -> list[Call]:
    """Return the calls of a loop whose epochs begin with these steps."""
    found: list[Call] = []
    for step in range(num_steps):
        if step in first_steps:
            said = {"loader": 0, "sampler": "RandomSampler", "replacement": False, "num_batches": 10, **detail}
            found.append(Call(step=max(step - 1, 0), call="epoch", detail=call_detail("epoch", said)))
        found += [Call(step=step, call="backward"), Call(step=step, call="step")]
    return found


def losses(*values: float) -> list[Metrics]:
    """Return metrics with these losses, a step each."""
    return [Metrics(step=step, loss=loss) for step, loss in enumerate(values)]


def only(find: Callable[[Run], list[Finding]], run: Run) -> Finding:
    """Return the one finding of a rule."""
    (finding,) = find(run)
    return finding
