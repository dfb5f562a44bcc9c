"""What the user's code may change besides a model's tensors: attributes, lists, counters, generators, memory banks."""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from roundoff.record.source_lines import is_users_file
from roundoff.replay.swapping import copy_value
from roundoff.torch_private import preserved_versions

_MAX_OBJECTS = 10_000
"""Longer containers are not copied, and at most this many objects are visited."""
_MAX_BYTES = 64 * 2**20
"""Larger tensors and arrays are assumed to be data, which models do not write into."""
_CONTAINERS = (list, dict, set, deque)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_TORCHS_OWN = frozenset(vars(nn.Module()))
"""The attributes that every module has."""
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
)  # fmt: skip

Undo = Callable[[], None]


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that torch does not manage."""
    return {key: value for key, value in vars(module).items() if key not in _TORCHS_OWN}


def own_generators(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the random generators that models, or the files that define them, hold."""
    return [found for found in _find_reachable(_roots(modules)) if isinstance(found, _GENERATORS)]


def save_generator(generator: Any) -> Undo:
    """Return a function that puts a generator back into its present state."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: _discard(generator.set_state(state))
    if isinstance(generator, np.random.Generator):
        bits, words = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", words)
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    plain = generator.getstate()
    return lambda: _discard(generator.setstate(plain))


@contextlib.contextmanager
def restoring_python_state(modules: Iterable[nn.Module], *, but: Callable[[Tensor], bool]) -> Iterator[None]:
    """Restore, at the end of the block, everything that the code of these models can reach.

    The search starts from the attributes of the modules, the variables of the user's files and the functions used as
    hooks, and covers containers, instances of the user's classes, generators, arrays, and tensors except those for
    which `but` is true. Variables of files are left alone while other threads run the user's code.
    """
    reached = _find_reachable(_roots(modules))
    tensors = [x for x in reached if isinstance(x, Tensor) and _is_small(x) and not but(x)]
    undos = [undo for found in reached if (undo := _undo_of(found)) is not None]
    undos += [_undo_of_tensor(x) for x in tensors]
    with preserved_versions(tensors):
        try:
            yield
        finally:
            for undo in reversed(undos):
                undo()


def _roots(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Yield where the search starts, the nearest to the models first: at most `_MAX_OBJECTS` are visited."""
    known = list(modules)
    reads_files = not other_threads_run_users_code()  # what another thread writes to a variable in the meantime stays
    if reads_files:
        yield from _variables_of_own_files(known)
    for module in known:
        yield from own_attributes(module).values()
        for name in _HOOKS:
            yield from getattr(module, name, {}).values()
        yield inspect.getattr_static(type(module), "forward", None)  # a scripted module's is no attribute of its class
    if reads_files:
        yield from (
            vars(file) for file in list(sys.modules.values()) if isinstance(file, ModuleType) and _is_users(file)
        )


def _variables_of_own_files(modules: Iterable[nn.Module]) -> Iterator[dict[str, Any]]:
    for kind in {type(module) for module in modules}:
        file = sys.modules.get(kind.__module__)
        if file is None or not _is_users(file):
            continue
        yield vars(file)
        forward = inspect.getattr_static(kind, "forward", None)
        if isinstance(forward, FunctionType):  # of a script that has ended, or of a class in another file
            yield forward.__globals__


def other_threads_run_users_code() -> bool:
    """Return whether another thread runs the user's code or may begin to; threads of libraries do not count."""
    if threading.active_count() == 1:
        return False
    if any(isinstance(thread, threading.Timer) for thread in threading.enumerate()):
        return True
    own = threading.get_ident()
    return any(_runs_users_code(frame) for ident, frame in sys._current_frames().items() if ident != own)


def _runs_users_code(frame: FrameType | None) -> bool:
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users_file(file) and "-packages" not in file:
            return True
        frame = frame.f_back
    return False


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    is_known = module.__name__.partition(".")[0] in ("roundoff", "torch")  # torch.ops says that its file is "_ops.py"
    if not isinstance(file, str) or "-packages" in file or is_known:
        return False
    return is_users_file(file)


def _find_reachable(roots: Iterable[Any]) -> list[Any]:
    """Return everything that can be reached from the roots, each object once: first all of the first root."""
    seen: dict[int, Any] = {}
    for root in roots:
        waiting = deque([root])
        while waiting and len(seen) < _MAX_OBJECTS:
            found = waiting.popleft()
            if id(found) in seen or isinstance(found, (nn.Module, type, ModuleType, str, bytes, int, float)):
                continue
            seen[id(found)] = found
            waiting.extend(_parts(found))
    return list(seen.values())


def _parts(found: Any) -> Iterable[Any]:
    if isinstance(found, (*_CONTAINERS, tuple)):
        return () if len(found) > _MAX_OBJECTS else found.values() if isinstance(found, dict) else found
    if isinstance(found, MethodType):
        return (found.__func__, found.__self__)
    if isinstance(found, FunctionType):
        cells = [cell.cell_contents for cell in found.__closure__ or () if _is_filled(cell)]
        return [*cells, *(found.__defaults__ or ())]
    return vars(found).values() if _is_instance_of_users(found) else ()


def _is_instance_of_users(found: Any) -> bool:
    module = sys.modules.get(type(found).__module__)
    return module is not None and hasattr(found, "__dict__") and _is_users(module)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _undo_of(found: Any) -> Undo | None:
    """Return a function that restores an object to its present value; None if it cannot change or is too large."""
    if isinstance(found, _GENERATORS):
        return save_generator(found)
    if isinstance(found, np.ndarray):
        return _undo_of_array(found)
    if isinstance(found, _CONTAINERS):
        return (
            None
            if len(found) > _MAX_OBJECTS
            else _undo_of_dict(found)
            if isinstance(found, dict)
            else _undo_of_items(found)
        )
    return _undo_of_dict(vars(found)) if _is_instance_of_users(found) else None


def _undo_of_dict(found: dict[Any, Any]) -> Undo:
    before = dict(found)

    def undo() -> None:
        for key in [key for key in found if key not in before]:
            del found[key]
        for key, value in before.items():
            if key not in found or found[key] is not value:
                found[key] = value

    return undo


def _undo_of_items(found: Any) -> Undo:
    before = list(found)

    def undo() -> None:
        if len(found) != len(before) or any(a is not b for a, b in zip(found, before, strict=True)):
            found.clear()
            (found.update if isinstance(found, set) else found.extend)(before)

    return undo


def _is_small(found: Tensor) -> bool:
    """Return whether a tensor is a plain one, and too small to be data."""
    if type(found) is not Tensor or found.layout is not torch.strided or found.is_inference() or found.is_meta:
        return False
    num_bytes = found.numel() * found.element_size()
    if found.untyped_storage().size() < num_bytes and found.is_contiguous():
        return False  # its memory was released, as sharded models do
    return num_bytes <= _MAX_BYTES


def _undo_of_tensor(found: Tensor) -> Undo:
    version, before = found._version, found.detach().clone()

    def undo() -> None:
        if found._version != version:
            found.data.copy_(before)

    return undo


def _undo_of_array(found: np.ndarray) -> Undo | None:
    if found.nbytes > _MAX_BYTES or not found.flags.writeable or found.dtype.hasobject:
        return None
    before = found.copy()
    return lambda: np.copyto(found, before)


def _discard(_: object) -> None:
    """Drop a value: an undo returns none."""


class ModuleAttributes:
    """A copy of the attributes of modules that steps change and that are not buffers: a hidden state, a counter."""

    def __init__(self, modules: Iterable[nn.Module], *, is_state: Callable[[Tensor], bool]) -> None:
        self._kept = [(ref(module), dict(_plain_attributes(module, is_state)), _names(module)) for module in modules]

    @contextlib.contextmanager
    def swapped_in(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Give the modules these attributes inside the block; those of `modules` that are new since keep theirs."""
        kept_modules = [(m, kept, names) for alive, kept, names in self._kept if (m := alive()) is not None]
        known = {id(module): module for module, _, _ in kept_modules} | {id(module): module for module in modules}
        own = [(module, dict(vars(module))) for module in known.values()]
        try:
            for module, kept, names in kept_modules:
                for name in _names(module) - names:
                    del vars(module)[name]
                vars(module).update({name: copy_value(value) for name, value in kept.items()})
            yield
        finally:
            for module, values in own:
                vars(module).clear()
                vars(module).update(values)


def _names(module: nn.Module) -> frozenset[str]:
    return frozenset(own_attributes(module))


def _plain_attributes(module: nn.Module, is_state: Callable[[Tensor], bool]) -> Iterator[tuple[str, Any]]:
    for name, value in own_attributes(module).items():
        if _is_kept(value, is_state):
            yield name, copy_value(value)


def _is_kept(value: Any, is_state: Callable[[Tensor], bool]) -> bool:
    """Return whether an attribute is data of its own: not machinery, and not another name of a weight."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    if isinstance(value, Tensor):
        is_weight = isinstance(value, nn.Parameter) or is_state(value)
        return not is_weight and value.numel() * value.element_size() <= _MAX_BYTES
    if isinstance(value, (list, tuple, deque, set)):
        return len(value) <= _MAX_OBJECTS and all(_is_kept(item, is_state) for item in value)
    if isinstance(value, dict):
        return len(value) <= _MAX_OBJECTS and all(_is_kept(item, is_state) for item in value.values())
    return False
