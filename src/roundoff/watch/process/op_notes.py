"""Notes every op in the flight recorder, so that the one that crashed or hung has a name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from roundoff.record.ops.op_table import describe_op
from roundoff.runs.flight import FlightRecorder
from roundoff.torch_private import DispatchMode


@contextlib.contextmanager
def noting_ops(flight: FlightRecorder) -> Iterator[None]:
    """Note every op of this thread inside the block; compiled models run eagerly, since compiled code shows no ops."""
    with torch.compiler.set_stance("force_eager"), _OpNotes(flight):
        yield


class _OpNotes(DispatchMode):
    """Notes each op before it runs and after it has ended."""

    def __init__(self, flight: FlightRecorder) -> None:
        super().__init__()
        self._flight = flight
        self._names: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op unchanged; one that raises stays noted as running, which shows where the exception came from."""
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = describe_op(func).name
        self._flight.op(name)
        result = func(*args, **kwargs) if kwargs else func(*args)
        self._flight.op_done()
        return result
