"""Tensors of ranks as they are read from a run."""

from __future__ import annotations

import numpy as np
import torch

from roundoff.compare.layouts.measured_tensor import MeasuredTensor
from roundoff.kernels import row, summarize
from roundoff.runs import Event


def measured(x: np.ndarray, *, values: bool = True) -> MeasuredTensor:
    """Return a tensor with its summary, and with its values unless `values=False`."""
    numbers = np.asarray(summarize(torch.from_numpy(np.ascontiguousarray(x)).float()))
    event = Event(
        step=0, rank=0, microbatch=0, phase="backward", site="0", op="gradient", nth=0, output="output0", order=0,
        parameter="0.weight", source=None, dtype="float32", shape=x.shape, device="cpu", num_elements=x.size,
        min=numbers[row.MIN], max=numbers[row.MAX], mean=numbers[row.SUM] / x.size, sum_abs=numbers[row.SUM_ABS],
        l2=float(np.sqrt(numbers[row.SUM_SQUARES])), num_nan=0, num_posinf=0, num_neginf=0, num_zero=0,
        num_subnormal=0, hash=int(numbers[row.HASH : row.HASH + 1].view(np.uint64)[0]),
        sketch_bytes=numbers[row.SKETCH :].astype("<f4").tobytes(),
    )  # fmt: skip
    return MeasuredTensor(event=event, given=np.asarray(x, dtype=np.float64) if values else None)
