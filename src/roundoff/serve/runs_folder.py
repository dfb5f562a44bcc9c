"""The directory that is served: which runs it contains. Nothing outside of it is ever read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roundoff.runs import Run
from roundoff.runs.files.folder import info_path
from roundoff.serve.http import Refusal

_NOT_SHOWN = ("report.html", "checkpoint.pt")
"""Files that are not part of the run: they may change although the run does not."""


NESTED = ":"
"""Separates the parts of a nested name: `/` would end it in a URL."""
MAX_DEPTH = 3
"""So far below the directory runs are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run of the directory in its current state; all of its files are inside the directory."""

    name: str
    run: Run
    stamp: str
    """A hash of the names, sizes and times of its files, which changes when something is written."""


class RunsFolder:
    """The runs inside a directory, by name, or the one run that the directory is; those of experiments are nested."""

    def __init__(self, root: Path) -> None:
        self.path = root
        """As the user wrote it; paths on pages begin with it."""
        self._real = root.resolve()

    def names(self) -> list[str]:
        """Return the names of all runs, damaged ones included."""
        if self._is_one_run():
            return [self._real.name]
        try:
            with os.scandir(self.path) as entries:
                return sorted(name for entry in entries for name in _names_in(entry))
        except OSError:
            return []

    def path_of(self, name: str) -> Path:
        """Return the directory of a run; raise a `Refusal` if there is none, or if it is outside."""
        path = self.path if self._is_one_run() and name == self._real.name else self.path / name
        if NESTED in name and not os.path.lexists(info_path(path)):
            return self._nested_path(name)
        is_plain = name not in ("", ".", "..") and not any(letter in name for letter in "/\\\0")
        if not is_plain or not os.path.lexists(info_path(path)):
            why = f"'{self.path}' contains no such directory with a {info_path.pattern}."
            raise Refusal(404, f"There is no run '{name}'.", why=why)
        self.check_inside(path)
        return path

    def _nested_path(self, name: str) -> Path:
        """Return the directory of a run inside an experiment: `plan-1:trials:3`."""
        *folders, last = name.split(NESTED)
        path = self.path
        for part in folders:
            path = path / part
            if part in ("", ".", "..") or any(letter in part for letter in "/\\\0") or path.is_symlink():
                raise Refusal(404, f"There is no run '{name}'.")
        return RunsFolder(path).path_of(last)

    def open(self, name: str) -> OpenedRun:
        """Open a run and stamp it.

        Raises:
            Refusal: there is none of that name, or it is not one that may be read.
            RunFolderError: it is damaged.
        """
        path = self.path_of(name)
        stamp = stamp_of(self.files(path))
        return OpenedRun(name=name, run=Run.open(path), stamp=stamp)

    def files(self, path: Path, *, top_only: bool = False) -> dict[str, os.stat_result]:
        """Return the files of a run by relative path; raise a `Refusal` if one is not regular, or outside."""
        return dict(self._files(path, "", top_only=top_only))

    def check_inside(self, path: Path) -> None:
        """Raise a `Refusal` if a path is a link that leads out of the served directory."""
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(self._real):
            raise Refusal(
                403,
                f"'{path}' is not served.",
                why=f"it is a link that leads out of '{self.path}', or is inside one.",
                fix="serve the directory that it points to.",
            )

    def _files(self, folder: str | Path, within: str, *, top_only: bool) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if not top_only:
                            yield from self._files(entry.path, f"{within}{entry.name}/", top_only=False)
                    elif not entry.name.endswith(".tmp") and (found := self._stat_file(entry)) is not None:
                        yield within + entry.name, found
        except FileNotFoundError:
            return  # the directory was removed in the meantime
        except OSError as error:
            raise Refusal(403, f"'{folder}' cannot be read.", why=f"{error.strerror}.") from error

    def _stat_file(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        if entry.is_symlink():
            self.check_inside(Path(entry.path))
        try:
            found = entry.stat()
        except FileNotFoundError:
            return None  # it was removed in the meantime, or is a broken link
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would block, and linked directories are not followed
            raise Refusal(403, f"'{entry.path}' is not served.", why="it is not a regular file.")
        return found

    def _is_one_run(self) -> bool:
        return os.path.lexists(info_path(self.path))


def stamp_of(files: dict[str, os.stat_result]) -> str:
    """Return a hash of the names, sizes and times of files.

    The flight recorder, which a running process writes all the time, is left out.
    """
    counted = (
        f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
        for name, found in sorted(files.items())
        if name not in _NOT_SHOWN and not name.endswith(".bin")
    )
    return hashlib.blake2b("\n".join(counted).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _names_in(entry: os.DirEntry[str], *, depth: int = 0) -> Iterator[str]:
    """Yield the name of a run; of a directory that is none, the names of those inside, such as trials of a plan."""
    if _is_run(entry):
        yield entry.name
        return
    if depth == MAX_DEPTH or entry.is_symlink() or not entry.is_dir():
        return
    try:
        with os.scandir(entry) as entries:
            inside = [name for each in entries for name in _names_in(each, depth=depth + 1)]
    except OSError:
        return
    yield from (f"{entry.name}{NESTED}{name}" for name in inside)


def _is_run(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and os.path.lexists(info_path(Path(entry.path)))
    except OSError:
        return False
