"""The DataLoaders of a script and what their data sets hold: whether a pass is over known or over new data."""

from __future__ import annotations

import dis
import gc
import itertools
import random
import sys
import weakref
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from roundoff.kernels import row as columns
from roundoff.kernels.summaries import summarize
from roundoff.runs import ArrayContent, UnusedLoaderProbe
from roundoff.watch.facts.tensor_hashes import hash_in


@dataclass(slots=True, kw_only=True)
class _KnownLoader:
    loader: weakref.ref[Any]
    dataset: weakref.ref[Any] | None
    """None if the data set cannot be referred to weakly, as a list."""
    content: tuple[ArrayContent, ...]
    number: int


class LoaderNumbers:
    """Gives each DataLoader a number; one that takes the place of another over the same data gets that one's.

    Many scripts make a loader anew for each epoch. Those that are alive at the same time are different loaders.
    """

    def __init__(self) -> None:
        self._known: list[_KnownLoader] = []
        self._before: weakref.WeakSet[Any] = weakref.WeakSet(_loaders_alive())
        """Those of other trainings in this process."""

    def number_of(self, loader: Any, content: tuple[ArrayContent, ...]) -> int:
        """Return the number of a loader; `content` describes what its data set holds in memory."""
        dataset = loader.dataset
        for known in self._known:
            before = known.loader()
            is_successor = before is None and (
                (known.dataset is not None and known.dataset() is dataset)
                or (bool(content) and known.content == content)
            )
            if before is loader or is_successor:
                known.loader, known.content = weakref.ref(loader), content
                return known.number
        number = len(self._known)
        self._known.append(
            _KnownLoader(loader=weakref.ref(loader), dataset=_weakly(dataset), content=content, number=number)
        )
        return number

    def unused(self, step: int) -> Iterator[UnusedLoaderProbe]:
        """Yield the DataLoaders of the script that nothing was read from, over data that no other reads."""
        used = [loader for known in self._known if (loader := known.loader()) is not None]
        if not used:
            return
        read = {id(loader.dataset) for loader in used}
        variables = vars(sys.modules.get("__main__", sys))
        for loader in _loaders_alive():
            is_new = loader not in self._before and id(loader.dataset) not in read
            if is_new and isinstance(loader.dataset, Sized):
                name = next((name for name, value in list(variables.items()) if value is loader), "")
                yield UnusedLoaderProbe(step=step, name=name, num_samples=len(loader.dataset))


def _loaders_alive() -> Iterator[Any]:
    return (found for found in gc.get_objects() if type(found) is DataLoader)


def _weakly(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None


# -- what a data set holds ---------------------------------------------------------------------------------------------


_MAX_ARRAYS = 8
_MAX_ELEMENTS = 2**18
"""At most this much of an array is read, from its beginning: code that changes samples changes these too."""
_MAX_DEPTH = 3


def dataset_content(dataset: Any) -> tuple[ArrayContent, ...]:
    """Describe the tensors and arrays in a data set: name and address; hash, mean and std of their beginnings."""
    arrays = itertools.islice(_arrays("", dataset, _MAX_DEPTH), _MAX_ARRAYS)
    return tuple(_describe_array(name, array) for name, array in arrays)


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


def _describe_array(name: str, array: Any) -> ArrayContent:
    x = _beginning(array)
    row = summarize(x)
    mean = float(row[columns.SUM]) / x.numel()
    variance = max(float(row[columns.SUM_SQUARES]) / x.numel() - mean * mean, 0.0)
    return ArrayContent(hash=f"{hash_in(row):016x}", mean=mean, std=variance**0.5, name=name, address=_address(array))


# -- generators that workers copy --------------------------------------------------------------------------------------

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_READS = ("__getitem__", "__getitems__", "__iter__", "__call__", "forward")
_SEEDS = frozenset({"get_worker_info", "seed", "manual_seed", "set_state", "setstate", "bit_generator", "spawn"})
"""Names in code that gives a generator another state."""


def copied_generators(dataset: Any) -> tuple[str, ...]:
    """Return the random generators that reading a sample draws from, by name; code that seeds them is not looked at.

    They belong to the data set or to a transform it holds, or to the file of its class. The workers of a DataLoader
    get copies of them, which are all in one state.
    """
    found: list[str] = []
    for owner in _readers(dataset, _MAX_DEPTH):
        codes, known = _codes_of_reading(type(owner))
        names = {name for code in codes for name in code.co_names}
        if names & _SEEDS:
            continue
        written = {step.argval for code in codes for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
        own = {name: value for name, value in getattr(owner, "__dict__", {}).items() if name not in written}
        for name, value in {**known, **own}.items():
            if name in names and isinstance(value, _GENERATORS) and name not in found:
                found.append(name)
    return tuple(found)


def _readers(value: Any, depth: int) -> Iterator[Any]:
    """Yield a data set, and the data sets and transforms in it that are written in Python."""
    if depth and isinstance(value, (list, tuple)):
        for item in value[:_MAX_ARRAYS]:
            yield from _readers(item, depth - 1)
    elif _can_read(value):
        yield value
        for item in vars(value).values() if depth else ():
            yield from _readers(item, depth - 1)


def _can_read(value: Any) -> bool:
    if not hasattr(value, "__dict__") or isinstance(value, (type, FunctionType, Tensor)):
        return False
    return any(name in vars(kind) for kind in type(value).__mro__[:-1] for name in _READS)


def _codes_of_reading(kind: type) -> tuple[list[CodeType], dict[str, Any]]:
    """Return the code of the methods that reading a sample may call, and the globals of their files."""
    methods = {
        name: method
        for base in reversed(kind.__mro__)
        for name, method in vars(base).items()
        if isinstance(method, FunctionType) and not base.__module__.startswith("torch.")
    }
    codes: list[CodeType] = []
    known: dict[str, Any] = {}
    waiting, seen = [name for name in _READS if name in methods], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        codes += _with_inner(methods[name].__code__)
        known |= {key: value for key, value in methods[name].__globals__.items() if isinstance(value, _GENERATORS)}
        waiting += [
            called for code in _with_inner(methods[name].__code__) for called in code.co_names if called in methods
        ]
    return codes, known


def _with_inner(code: CodeType) -> list[CodeType]:
    inner = [found for constant in code.co_consts if isinstance(constant, CodeType) for found in _with_inner(constant)]
    return [code, *inner]
