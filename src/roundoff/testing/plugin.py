"""The plugin that pytest loads where roundoff is installed; torch and our rooms are loaded by the tests that use it."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roundoff.files import write_output

if TYPE_CHECKING:
    from roundoff.testing.assertions import HealthyTraining


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
    """Return a name for a folder; tests whose names are shortened are distinguished by a hash.

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


_RUNS = pytest.StashKey[RunsOfTest]()
_MARKER = (
    "numerics(max_ulps, reference='fp64', sites=None, ops=None, phases=None): "
    "fail if an op in the body of this test is further from fp64 than max_ulps"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.getgroup("roundoff").addoption(
        "--roundoff-artifacts",
        metavar="DIR",
        help="Keep the run folders of tests that fail, each with its page, in DIR.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare our marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def roundoff_healthy(request: pytest.FixtureRequest) -> HealthyTraining:
    """Open a block with a call of this; the test fails if the training inside is not healthy."""
    from roundoff.testing.assertions import HealthyTraining

    runs = _runs_of(request.node)
    return HealthyTraining(runs.new_folder, is_kept=runs.are_kept)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker whose arguments are wrong, before the test begins."""
    marker = item.get_closest_marker("numerics")
    if marker is not None:
        from roundoff.testing.assertions import ExactOps

        try:
            ExactOps(*marker.args, **marker.kwargs)
        except TypeError as error:
            what = str(error).partition(" ")[2]
            pytest.fail(f"@pytest.mark.numerics: {what}\n  how: {_MARKER}", pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Hold the ops of a test's body against fp64 if it has our marker."""
    marker = item.get_closest_marker("numerics")
    if marker is None:
        yield
        return
    from roundoff.testing.assertions import ExactOps

    exact, folder = ExactOps(**marker.kwargs), _runs_of(item).new_folder()
    outcome = None
    try:
        with exact.recording(folder):
            outcome = yield
        exact.check(folder)
    except (Exception, pytest.fail.Exception) as error:
        if outcome is None:
            raise
        if outcome.excinfo is None:  # what the test itself raised goes first
            outcome.force_exception(error)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Keep the runs of a test that failed, if the user requested that, and delete those of all others."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    page = None if call.excinfo is None else _page_of_difference(call.excinfo.value)
    if _RUNS not in item.stash and page is None:
        return
    runs = _runs_of(item)
    try:
        if report.failed:
            runs.has_failed = True
            if page is not None:
                runs.add_page("comparison.html", page())
            if runs.kept is not None:
                report.sections.append(("roundoff", f"runs and pages: {runs.kept}"))
        if call.when == "teardown":
            del item.stash[_RUNS]  # the test may be run again
            runs.close()
    except Exception as error:  # whatever it is, the tests go on
        report.sections.append(("roundoff", f"the runs could not be kept: {error}"))


def _page_of_difference(error: BaseException) -> Callable[[], str] | None:
    """Return what makes the page about two runs that differ, if that is the error; loads nothing."""
    module = sys.modules.get("roundoff.testing.assertions")
    return error.report.page if module is not None and isinstance(error, module.RunsDiffer) else None


def _runs_of(item: pytest.Item) -> RunsOfTest:
    """Return the runs of a test, which may have none yet."""
    if _RUNS not in item.stash:
        given = item.config.getoption("--roundoff-artifacts")
        kept_in = None if given is None else Path(item.config.invocation_params.dir, given)
        item.stash[_RUNS] = RunsOfTest(item.nodeid, kept_in=kept_in)
    return item.stash[_RUNS]
