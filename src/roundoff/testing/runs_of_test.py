"""The run folders that a test makes: deleted if it passes, kept with their pages if it fails and the user says so."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path

from roundoff.files import write_output


class RunsOfTest:
    """Gives a test its run folders.

    Args:
        name: of the test, as pytest writes it.
        kept_in: the folder that keeps the runs of tests that fail; None keeps none.
    """

    def __init__(self, name: str, *, kept_in: Path | None) -> None:
        self.has_failed = False
        self._kept_in = kept_in
        self._name = _file_name(name)
        self._folder: Path | None = None
        self._num_runs = 0

    @property
    def are_kept(self) -> bool:
        """Whether the runs stay if the test fails."""
        return self._kept_in is not None

    @property
    def kept(self) -> Path | None:
        """Where the runs are that will be kept if the test fails; None if there are none."""
        return None if self._kept_in is None else self._folder

    def new_folder(self) -> Path:
        """Return where the next run of the test goes; nothing is there yet."""
        if self._folder is None:
            self._folder = self._make_folder()
        self._num_runs += 1
        return self._folder / f"run-{self._num_runs}"

    def add_page(self, name: str, html: str) -> None:
        """Keep a page with the runs of a test that has failed."""
        if self._kept_in is not None:
            self._folder = self._folder or self._make_folder()
            write_output(self._folder / name, html.encode())

    def close(self) -> None:
        """Delete the runs, or write a page about each if they are to be kept."""
        if self._folder is None:
            return
        if self._kept_in is None or not self.has_failed:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        for number in range(1, self._num_runs + 1):
            run = self._folder / f"run-{number}"
            if run.is_dir():
                _write_page(run)

    def _make_folder(self) -> Path:
        if self._kept_in is None:
            return Path(tempfile.mkdtemp(prefix="roundoff-"))
        number = 1
        while True:  # another attempt at the same test has a folder of its own
            folder = self._kept_in / (self._name if number == 1 else f"{self._name}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return folder.absolute()


def _file_name(test: str) -> str:
    """Return a name for a folder; tests whose names are shortened are told apart by a hash.

    >>> _file_name("tests/test_a.py::test_b")
    'tests-test_a.py-test_b'
    >>> _file_name("test_a.py::test_b[x y]")
    'test_a.py-test_b-x-y-141e4569'
    """
    plain = test.replace("/", "-").replace("::", "-")
    name = re.sub(r"[^\w.-]+", "-", plain).strip("-.")[:120]
    return name if name == plain else f"{name}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


def _write_page(folder: Path) -> None:
    from roundoff.diagnose.diagnosis import view_run
    from roundoff.report.run_page.document import run_page
    from roundoff.runs import Run

    write_output(folder / "report.html", run_page(view_run(Run.open(folder))).html.encode())
