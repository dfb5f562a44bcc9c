"""Describes what a data set holds in memory, so that a later description shows whether it was changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from roundoff.kernels import row as columns
from roundoff.kernels.summaries import summarize
from roundoff.runs import JsonValue
from roundoff.watch.facts.tensor_hashes import hash_in

_MAX_ARRAYS = 8
_MAX_ELEMENTS = 2**18
"""At most this much of an array is read, from its beginning: code that changes samples changes these too."""
_MAX_DEPTH = 3


def dataset_content(dataset: Any) -> list[JsonValue]:
    """Describe the tensors and arrays in a data set: name and address; hash, mean and std of their beginnings."""
    found: list[JsonValue] = []
    for name, array in _arrays("", dataset, _MAX_DEPTH):
        if len(found) == _MAX_ARRAYS:
            break
        found.append({**_describe_array(_beginning(array)), "name": name, "address": _address(array)})
    return found


def _arrays(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Tensor, np.ndarray)):
        if _is_numbers(value):
            yield name, value
    elif depth and isinstance(value, (list, tuple)):
        for index, item in enumerate(value[:_MAX_ARRAYS]):
            yield from _arrays(f"{name}[{index}]", item, depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in list(value.items())[:_MAX_ARRAYS]:
            yield from _arrays(f"{name}[{key!r}]", item, depth - 1)
    elif depth and isinstance(value, Dataset):
        for key, item in vars(value).items():
            yield from _arrays(f"{name}.{key}".removeprefix("."), item, depth - 1)


def _is_numbers(value: Any) -> bool:
    if isinstance(value, Tensor):
        is_plain = type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu"
        return is_plain and not value.is_complex() and value.numel() > 0
    return value.dtype.kind in "fiu" and value.size > 0


def _beginning(array: Any) -> Tensor:
    count = array.numel() if isinstance(array, Tensor) else array.size
    if len(array.shape) and count > _MAX_ELEMENTS:
        array = array[: max(1, _MAX_ELEMENTS * array.shape[0] // count)]
    return array.detach() if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def _address(array: Any) -> int:
    return int(array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data)


def _describe_array(x: Tensor) -> dict[str, JsonValue]:
    row = summarize(x)
    mean = float(row[columns.SUM]) / x.numel()
    variance = max(float(row[columns.SUM_SQUARES]) / x.numel() - mean * mean, 0.0)
    return {"hash": f"{hash_in(row):016x}", "mean": mean, "std": variance**0.5}
