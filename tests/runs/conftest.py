"""Small runs to write and read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from roundoff.runs import EventColumns, HashColumns, Interned, ParameterColumns

MakeEvents = Callable[..., EventColumns]


def events_of_step(step: int, num_rows: int = 6, **replaced: Any) -> EventColumns:
    """Rows that alternate between two sites and three phases; a row's numbers tell step and place."""
    rows = np.arange(num_rows)
    zeros = np.zeros(num_rows, dtype=np.int64)
    columns: dict[str, Any] = {
        "step": np.full(num_rows, step, dtype=np.int32),
        "microbatch": zeros.astype(np.int16),
        "phase": Interned(codes=(rows % 3).astype(np.int32), values=["forward", "backward", "optimizer"]),
        "site": Interned(codes=(rows % 2).astype(np.int32), values=["blocks.0.mlp", "blocks.1.mlp"]),
        "op": Interned(codes=(rows % 2).astype(np.int32), values=["aten.addmm", "aten.bmm"]),
        "nth": (rows // 2).astype(np.int32),
        "output": Interned.constant("output0", num_rows),
        "order": rows.astype(np.int32),
        "dtype": Interned.constant("float32", num_rows),
        "shape": Interned.constant("8x4", num_rows),
        "device": Interned.constant("cpu", num_rows),
        "num_elements": zeros + 32,
        "min": -1.0 - rows,
        "max": 2.0 + rows,
        "mean": 0.5 * rows,
        "sum_abs": 10.0 + rows,
        "l2": 3.0 + step,
        "num_nan": zeros,
        "num_posinf": zeros,
        "num_neginf": zeros,
        "num_zero": zeros,
        "num_subnormal": zeros,
        "hash": (rows + 1000 * step).astype(np.uint64),
    }
    columns["l2"] = np.full(num_rows, columns["l2"])
    return EventColumns(**(columns | replaced))


@pytest.fixture
def make_events() -> MakeEvents:
    return events_of_step


@pytest.fixture
def parameters() -> ParameterColumns:
    return ParameterColumns(
        step=np.array([3, 3], dtype=np.int32),
        parameter=Interned.of(["fc.weight", "fc.bias"]),
        site=Interned.constant("fc", 2),
        num_elements=np.array([12, 3]),
        l2=np.array([1.5, np.nan]),
        absmax=np.array([0.5, np.inf]),
        grad_l2=np.ma.array([2.0, 0.0], mask=[False, True]),
        changed_fraction=np.array([1.0, 0.25]),
    )


@pytest.fixture
def hashes() -> HashColumns:
    return HashColumns(
        step=np.array([3, 3], dtype=np.int32),
        microbatch=np.array([0, 1], dtype=np.int16),
        kind=Interned.of(["input", "buffer"]),
        name=Interned.of(["0", "bn.running_mean"]),
        hash=np.array([1, 2**64 - 1], dtype=np.uint64),
    )
