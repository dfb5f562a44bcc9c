"""A copy of a run's finished files somewhere else, made while the training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from roundoff.errors import RunFolderError

MAX_WAIT_SECONDS = 60.0
"""How long the end of a run waits for the last copies."""


class MirrorStoppedWarning(UserWarning):
    """The run is no longer copied to its mirror; it is still recorded."""


class Mirror:
    """Copies files of one folder to an fsspec URL, one after another, in a thread of its own.

    The first failure ends it: `failure` then says what happened, and later files are not copied.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.failure: str | None = None
        self._folder = folder
        self._filesystem, self._root = _open(url)
        self._queue: SimpleQueue[Path | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._copy_all, name="roundoff-mirror", daemon=True)

    def send(self, path: Path) -> None:
        """Have a finished file of the folder copied; does not wait for it."""
        self._queue.put(path)
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Wait until everything sent is copied, but not for ever."""
        self._queue.put(None)
        if self._thread.ident is None:
            return
        self._thread.join(MAX_WAIT_SECONDS)
        if self._thread.is_alive():
            self.failure = self.failure or f"copies were not finished after {MAX_WAIT_SECONDS:g} seconds"

    def _copy_all(self) -> None:
        while (path := self._queue.get()) is not None:
            if self.failure is None:
                try:
                    self._copy(path)
                except Exception as error:  # every filesystem raises errors of its own
                    self.failure = f"{path}: {type(error).__name__}: {error}"

    def _copy(self, path: Path) -> None:
        target = f"{self._root}/{path.relative_to(self._folder).as_posix()}"
        self._filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._filesystem.put_file(str(path), target)


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-untyped]

        filesystem, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise RunFolderError.explain(
            f"No run can be mirrored to '{url}'.",
            why=f"{error}.",
            fix="install what the URL needs (s3fs for s3://, gcsfs for gs://), or leave the mirror out.",
        ) from error
    return filesystem, str(root).rstrip("/")
