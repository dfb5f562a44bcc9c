"""Run folders written without a training, for tests of what reads them.

`write_run(folder, losses(2.0, 1.5), Call(step=0, call="step"), OverfitProbe(step=3, losses=(1.0,)))` takes
records in any order, by themselves or in lists, and puts each where its type belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from roundoff.runs import (
    BatchFacts,
    Call,
    CallKind,
    EventColumns,
    HashColumns,
    Interned,
    Metrics,
    ModuleFacts,
    ParameterColumns,
    ParameterFacts,
    Probe,
    Run,
    RunInfo,
    RunWriter,
    Structure,
    TensorFacts,
    call_detail,
)

MODEL = ModuleFacts(site="<model>", kind="Sequential", training=True)

_OF_A_MODEL = (BatchFacts, Call, ModuleFacts, ParameterFacts, *get_args(Probe))


def write_run(folder: Path, *contents: Any, rank: int = 0, **info: Any) -> Run:
    """Write what one rank leaves and return the run; `info` are fields of run.json.

    Contents are records (`Metrics`, `Call`, `BatchFacts`, `Structure`, ...), columns of tables, and lists of all
    these. A run with a loop or batches in it has a structure too: without one among the contents, it is a model with
    the `ModuleFacts` and `ParameterFacts` that are given.
    """
    everything = list(_flatten(contents))
    modules = [content for content in everything if isinstance(content, ModuleFacts)]
    parameters = [content for content in everything if isinstance(content, ParameterFacts)]
    with RunWriter.create(folder, RunInfo(**info), rank=rank, strict=True) as writer:
        if any(isinstance(content, _OF_A_MODEL) for content in everything) and not _has_structure(everything):
            writer.write(Structure(step=0, modules=(MODEL, *modules), parameters=tuple(parameters)))
        for content in everything:
            match content:
                case EventColumns():
                    writer.write_events(content)
                case ParameterColumns():
                    writer.write_parameters(content)
                case HashColumns():
                    writer.write_hashes(content)
                case ModuleFacts() | ParameterFacts():
                    pass
                case _:
                    writer.write(content)
    return Run.open(folder)


def _has_structure(contents: list[Any]) -> bool:
    return any(isinstance(content, Structure) for content in contents)


def _flatten(contents: Iterable[Any]) -> Iterator[Any]:
    for content in contents:
        if isinstance(content, list | tuple):
            yield from _flatten(content)
        else:
            yield content


def losses(*values: float) -> list[Metrics]:
    """Return the metrics of one step for each loss."""
    return [Metrics(step=step, loss=loss) for step, loss in enumerate(values)]


LoopCall = tuple[CallKind, dict[str, Any]]


def call(name: CallKind, **detail: Any) -> LoopCall:
    """Return a call of the loop, for `calls_by_step`."""
    return name, detail


def calls_by_step(steps: Sequence[Sequence[LoopCall]]) -> list[Call]:
    """Return the calls of each step, in their order."""
    return [
        Call(step=step, call=name, detail=call_detail(name, detail))
        for step, calls in enumerate(steps)
        for name, detail in calls
    ]


def epochs(*first_steps: int, num_steps: int, **detail: Any) -> list[Call]:
    """Return the calls of a loop whose epochs begin with these steps."""
    found: list[Call] = []
    for step in range(num_steps):
        if step in first_steps:
            facts = {"loader": 0, "sampler": "RandomSampler", "replacement": False, "num_batches": 10, **detail}
            found.append(Call(step=max(step - 1, 0), call="epoch", detail=call_detail("epoch", facts)))
        found += [Call(step=step, call="backward"), Call(step=step, call="step")]
    return found


def tensor(
    place: str = "<model>[0]", shape: tuple[int, ...] = (8, 16), dtype: str = "float32", **facts: Any
) -> TensorFacts:
    """Describe a tensor; its numbers have mean 0 and std 1 unless given."""
    return TensorFacts(
        place=place, shape=shape, dtype=dtype, **{"min": -3.0, "max": 3.0, "mean": 0.0, "std": 1.0, **facts}
    )


def labels(counts: Mapping[str, int], **facts: Any) -> TensorFacts:
    """Describe labels of classes."""
    return tensor("target", (sum(counts.values()),), "int64", counts=counts, is_target=True, **facts)


def parameter_rows(rows: Iterable[Mapping[str, Any]]) -> list[ParameterColumns]:
    """Return rows of the table of parameters; each has a step, a parameter, and the columns that matter."""
    return [_parameter_row(**row) for row in rows]


def _parameter_row(step: int, parameter: str, num_elements: int = 100, **numbers: float) -> ParameterColumns:
    values = {name: np.array([number]) for name, number in {"l2": 1.0, "absmax": 1.0, **numbers}.items()}
    return ParameterColumns(
        step=np.array([step], dtype=np.int32),
        parameter=Interned.of([parameter]),
        site=Interned.of([parameter.rpartition(".")[0]]),
        num_elements=np.array([num_elements], dtype=np.int64),
        **values,
    )


def hash_rows(rows: Sequence[tuple[int, str, str, int]]) -> HashColumns:
    """Return rows of the table of hashes: step, kind, name, hash."""
    steps, kinds, names, numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    return HashColumns(
        step=np.array(steps, dtype=np.int32),
        microbatch=np.zeros(len(steps), dtype=np.int16),
        kind=Interned.of(list(kinds)),
        name=Interned.of(list(names)),
        hash=np.array(numbers, dtype=np.uint64),
    )
