"""Notices child processes of a watched script that train: they are not watched, and the verdict must say so.

A forked child inherits a hook that finds itself in another process. A child that `multiprocessing` starts afresh gets
the hook with the data that prepares it. Workers of a DataLoader never step an optimizer. Programs that a script starts
in other ways (`subprocess`) are not noticed.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import multiprocessing.spawn
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_OPTIMIZERS = "torch.optim.optimizer"


@contextlib.contextmanager
def noticing_children(folder: Path, *, rank: int) -> Iterator[None]:
    """Have children that train inside the block leave a gap in the run folder."""
    folder = folder.absolute()
    hook = _note_steps(sys.modules[_OPTIMIZERS], folder, rank=rank, is_child=False)
    prepare = multiprocessing.spawn.get_preparation_data

    def prepare_child(name: str) -> dict[str, Any]:
        return {**prepare(name), "roundoff": _Begin(folder, rank)}

    multiprocessing.spawn.get_preparation_data = prepare_child
    try:
        yield
    finally:
        hook.remove()
        if multiprocessing.spawn.get_preparation_data is prepare_child:
            multiprocessing.spawn.get_preparation_data = prepare


def begin_in_child(folder: str, rank: int) -> None:
    """Note, once torch is imported in this process, the first step of an optimizer."""
    if _OPTIMIZERS in sys.modules:
        _note_steps(sys.modules[_OPTIMIZERS], Path(folder), rank=rank, is_child=True)
    else:
        sys.meta_path.insert(0, _WhenImported(Path(folder), rank))


class _Begin:
    """Calls `begin_in_child` where it is unpickled; a child that cannot import roundoff goes on without."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._call = f"begin_in_child({str(folder)!r}, {rank})"

    def __reduce__(self) -> tuple[Any, ...]:
        importing = "from roundoff.watch.process.child_trainings import begin_in_child"
        code = f"try:\n    {importing}\n    {self._call}\nexcept Exception:\n    pass\n"
        return exec, (code, {})


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds the module of optimizers as usual, and has it noted when it has been imported."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual spec of the module, and None for all others."""
        if fullname != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_note(module: ModuleType) -> None:
                execute(module)
                with contextlib.suppress(Exception):
                    _note_steps(module, self._folder, rank=self._rank, is_child=True)

            spec.loader.exec_module = execute_and_note  # type: ignore[method-assign]
        return spec


def _note_steps(optimizers: ModuleType, folder: Path, *, rank: int, is_child: bool) -> Any:
    """Write a gap at the first optimizer step in a child process; return the handle of the hook."""
    watched = None if is_child else os.getpid()
    noted: set[int] = set()

    def note(*_: Any) -> None:
        process = os.getpid()
        if process == watched or process in noted:
            return
        noted.add(process)
        from roundoff.runs import Gap, append_gap

        append_gap(folder, Gap(kind="child", rank=rank))

    return optimizers.register_optimizer_step_post_hook(note)
