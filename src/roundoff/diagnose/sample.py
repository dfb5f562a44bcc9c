"""Which sample of the batch a bad value belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

from roundoff.diagnose.bad_step import BadStep
from roundoff.errors import RunFolderError
from roundoff.runs import TensorFile


def sample_of(bad: BadStep) -> int | None:
    """Return the sample whose result the caught op spoilt; None where its first dimension is not the batch.

    Attention may fold heads into that dimension: then it is a multiple of the batch's size, the heads of a sample
    side by side.
    """
    if bad.origin is None or bad.place is None or not bad.origin.bad_index or not bad.place.batch_size:
        return None
    length, size = bad.place.bad.shape[0], bad.place.batch_size
    return bad.origin.bad_index[0] // (length // size) if size > 1 and length % size == 0 else None


def bad_index_in_batch(bad: BadStep) -> tuple[str, tuple[int, ...]] | None:
    """Return key and index of the first value of the kept batch that is not finite; None without one."""
    if bad.events is None:
        return None
    try:
        file = bad.events.replay_batch(rank=bad.rank)
    except RunFolderError:
        return None
    for key in sorted(file):
        index = _first_bad(_as_floats(file, key))
        if index is not None:
            return key, index
    return None


def _as_floats(file: TensorFile, key: str) -> Any:
    if not file.entry(key).dtype.startswith(("F", "BF")):
        return np.zeros(())
    return file[key] if file.entry(key).dtype in ("F16", "F32", "F64") else file.torch(key).float().numpy()


def _first_bad(values: Any) -> tuple[int, ...] | None:
    places = np.argwhere(~np.isfinite(values) & ~np.isneginf(values))
    return tuple(int(i) for i in places[0]) if len(places) else None
