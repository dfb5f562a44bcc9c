"""Runs a user's training script as Python would, with a recording around it."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import os
import runpy
import secrets
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from roundoff.errors import RunFolderError, ScriptError
from roundoff.notebook_cells import is_notebook
from roundoff.record.process_info import launch_name, rank, restart_count
from roundoff.record.source_lines import without_our_frames
from roundoff.runs import Run, next_free_name

_MAX_WAIT_SECONDS = 60.0
_INTERRUPTED = 130
_WAITING = ".roundoff-"
_KEPT_MAIN = "__roundoff_main__"
"""The name of the script's module after our own is `__main__` again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script (its path) or a module (its name), and its arguments."""

    target: str
    args: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def stem(self) -> str:
        """The name of its runs."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem

    @property
    def command(self) -> tuple[str, ...]:
        """The command as a user would type it."""
        return ("python", *(("-m",) if self.is_module else ()), self.target, *self.args)

    def check(self) -> None:
        """Raise if there is no such script."""
        if self.is_module:
            self._check_module()
        elif not Path(self.target).is_file():
            what = "is a folder" if Path(self.target).is_dir() else "does not exist"
            raise ScriptError.explain(
                f"There is no script '{self.target}'.", why=f"it {what}.", fix="name a Python file, or -m MODULE."
            )

    def _check_module(self) -> None:
        package = self.target.partition(".")[0]
        with _first_on_path(os.getcwd()):
            is_there = package in sys.modules or PathFinder.find_spec(package) is not None
        if not is_there and package not in sys.builtin_module_names:
            why = f"no '{package}' is in the current folder or installed."
            raise ScriptError.explain(f"There is no module '{self.target}'.", why=why)


def run_script(
    script: Script,
    *,
    raising: tuple[type[Exception], ...] = (),
    on_error: Callable[[BaseException], None] | None = None,
) -> int:
    """Run a script as the main program of this process and return its exit code.

    It sees its own arguments, its own folder first on the path, and `__name__ == "__main__"`. An uncaught exception
    is passed to `on_error` and then printed as Python would print it, without our frames; the exit code is 1, or 130
    for an interrupt. Those in `raising` are raised.
    """
    with _as_main(script):
        try:
            if script.is_module:
                runpy.run_module(script.target, run_name="__main__", alter_sys=True)
            else:
                _run_file(script.target)
        except SystemExit as leaving:
            return _exit_code(leaving.code)
        except raising:
            raise
        except (Exception, KeyboardInterrupt) as error:
            trace = _without_our_frames(error)
            if script.is_module and trace is None and isinstance(error, ImportError):
                raise ScriptError.explain(f"There is no module '{script.target}'.", why=f"{error}.") from error
            error = error.with_traceback(trace)
            if on_error is not None:
                on_error(error)
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def arguments_at_exit(script: Script) -> None:
    """Let the exit handlers of a script that has ended find its arguments; the last to register is called first."""
    atexit.register(setattr, sys, "argv", [script.target, *script.args])


def _run_file(target: str) -> None:
    """Run a file in a new module `__main__`, with the same attributes as for `python train.py`.

    The module is kept until the process ends: exit handlers must run before its variables are dropped.
    """
    path = os.path.abspath(target)
    if not zipfile.is_zipfile(path) and not path.endswith(".pyc"):
        main = ModuleType("__main__")
        vars(main).update(__file__=path, __builtins__=builtins, __cached__=None, __annotations__={})
        main.__loader__ = SourceFileLoader("__main__", path)
        sys.modules["__main__"] = sys.modules[_KEPT_MAIN] = main
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, vars(main))
    else:
        runpy.run_path(target, run_name="__main__")


def folder_for(script: Script, *, name: str | None, base: Path) -> Path:
    """Return the run folder to use: `base`/`name`, or a free name after the script that all ranks agree on.

    A launcher that restarts its ranks after a failure gives the next attempt a folder of its own next to the first.
    """
    if name is not None:
        attempt = restart_count()
        return base / (f"{name}-restart{attempt}" if attempt else name)
    launch = launch_name()
    if launch is None or rank() == 0:
        return next_free_name(base, script.stem)
    return _folder_of_rank_0(base, script.stem, launch)


def unless_taken(folder: str | Path) -> Path:
    """Return the folder of a run; in a notebook, whose cells are run again and again, a numbered one if it is taken."""
    folder = Path(folder)
    if not is_notebook() or not (folder / "run.json").exists():
        return folder
    return next_free_name(folder.parent, folder.name)


def waiting_folder(base: Path) -> Path | None:
    """Return a hidden folder for a run to wait in until training begins, if `base` is not there yet; else None.

    A script may make a folder of that name for itself. With several ranks the folder must be there from the start.
    """
    if base.exists() or launch_name() is not None:
        return None
    return base.parent / f"{_WAITING}{secrets.token_hex(8)}"


def is_waiting(folder: Path) -> bool:
    """Return whether a run is still in its hidden folder."""
    return folder.name.startswith(_WAITING)


def _folder_of_rank_0(base: Path, stem: str, launch: str) -> Path:
    """Wait until rank 0 of this launch has made its folder."""
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    while time.monotonic() < deadline:
        for folder in sorted(base.glob(f"{stem}*")):
            with contextlib.suppress(RunFolderError):
                info = Run.open(folder).info
                if info.launch == launch and info.status == "running":
                    return folder
        time.sleep(0.05)
    raise RunFolderError.explain(
        f"Rank {rank()} found no run folder of rank 0 in '{base}'.",
        why=f"none appeared within {_MAX_WAIT_SECONDS:.0f} s; on several machines the folder must be shared.",
        fix="give every rank the same folder: --name NAME, on a shared disk.",
    )


@contextlib.contextmanager
def _as_main(script: Script) -> Iterator[None]:
    argv, main = sys.argv[:], sys.modules.get("__main__")
    sys.argv = [script.target, *script.args]
    try:
        with _first_on_path(os.getcwd() if script.is_module else str(Path(script.target).resolve().parent)):
            yield
    finally:
        sys.argv = argv
        if main is not None:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    path = sys.path[:]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = path


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _without_our_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback without our frames; None if the script never began. Causes and contexts are cut too."""
    for before in (error.__cause__, error.__context__):
        if before is not None and before.__traceback__ is not None:
            before.__traceback__ = _without_our_frames(before)
    return without_our_frames(error.__traceback__)


def parse_script_command(words: Sequence[str], *, is_module: bool, example: str) -> Script:
    """Split what follows our own options into the script and its arguments."""
    if not words:
        raise ScriptError.explain("No script was named.", fix=f"for example: {example}")
    return Script(target=words[0], args=tuple(words[1:]), is_module=is_module)
