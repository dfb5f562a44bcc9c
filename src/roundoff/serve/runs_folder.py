"""The folder that is served: which runs it holds, and that nothing outside of it is read."""

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
"""Files beside the run's own: they may change without the run having changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run of the folder, every file of which is inside, as it is now."""

    name: str
    run: Run
    stamp: str
    """What the names, sizes and times of its files come to: another one means that something was written."""


class RunsFolder:
    """The runs directly inside a folder, by name; or the one run that the folder is."""

    def __init__(self, root: Path) -> None:
        self.path = root
        """As the user wrote it: so are the paths of runs, on pages too."""
        self._real = root.resolve()

    def names(self) -> list[str]:
        """Return the names of everything that should be a run, damaged or not."""
        if self._is_one_run():
            return [self._real.name]
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if _is_run(entry))
        except OSError:
            return []

    def path_of(self, name: str) -> Path:
        """Return the folder of a run; a `Refusal` if there is none of that name, or it leads out of here."""
        path = self.path if self._is_one_run() and name == self._real.name else self.path / name
        is_plain = name not in ("", ".", "..") and not any(letter in name for letter in "/\\\0")
        if not is_plain or not os.path.lexists(info_path(path)):
            why = f"'{self.path}' holds no such folder with a {info_path.pattern}."
            raise Refusal(404, f"There is no run '{name}'.", why=why)
        self.check_inside(path)
        return path

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
        """Return the files of a run by their path in it; a `Refusal` if one is no file, or leads out of here."""
        return dict(self._files(path, "", top_only=top_only))

    def check_inside(self, path: Path) -> None:
        """Raise a `Refusal` if a path in the folder that is served is a link that leads out of it."""
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(self._real):
            raise Refusal(
                403,
                f"'{path}' is not shown.",
                why=f"it is a link that leads out of '{self.path}', or lies behind one.",
                fix="serve the folder that it leads to.",
            )

    def _files(self, folder: str | Path, within: str, *, top_only: bool) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if not top_only:
                            yield from self._files(entry.path, f"{within}{entry.name}/", top_only=False)
                    elif not entry.name.endswith(".tmp") and (found := self._checked(entry)) is not None:
                        yield within + entry.name, found
        except FileNotFoundError:
            return  # the folder was removed meanwhile, and has no files
        except OSError as error:
            raise Refusal(403, f"'{folder}' cannot be read.", why=f"{error.strerror}.") from error

    def _checked(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        if entry.is_symlink():
            self.check_inside(Path(entry.path))
        try:
            found = entry.stat()
        except FileNotFoundError:
            return None  # it was removed meanwhile, or is a link to nothing: the next one is looked at all the same
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, and a linked folder was not looked into
            raise Refusal(403, f"'{entry.path}' is not shown.", why="a run holds files, and this is none.")
        return found

    def _is_one_run(self) -> bool:
        return os.path.lexists(info_path(self.path))


def stamp_of(files: dict[str, os.stat_result]) -> str:
    """Return what the files of a run come to; two runs with the same are the same.

    The flight recorder, which a running process writes all the time, does not count.
    """
    counted = (
        f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
        for name, found in sorted(files.items())
        if name not in _NOT_SHOWN and not name.endswith(".bin")
    )
    return hashlib.blake2b("\n".join(counted).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _is_run(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and os.path.lexists(info_path(Path(entry.path)))
    except OSError:
        return False
