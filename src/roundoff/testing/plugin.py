"""The plugin that pytest loads where roundoff is installed; torch and our rooms are loaded by the tests that use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roundoff.testing.runs_of_test import RunsOfTest

if TYPE_CHECKING:
    from roundoff.testing.healthy_training import HealthyTraining

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
    from roundoff.testing.healthy_training import HealthyTraining

    runs = _runs_of(request.node)
    return HealthyTraining(runs.new_folder, is_kept=runs.are_kept)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker whose arguments are wrong, before the test begins."""
    marker = item.get_closest_marker("numerics")
    if marker is not None:
        from roundoff.testing.exact_ops import ExactOps

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
    from roundoff.testing.exact_ops import ExactOps

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
    """Keep the runs of a test that failed, if the user asked for that, and delete those of all others."""
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
    module = sys.modules.get("roundoff.testing.same_run")
    return error.report.page if module is not None and isinstance(error, module.RunsDiffer) else None


def _runs_of(item: pytest.Item) -> RunsOfTest:
    """Return the runs of a test, which may have none yet."""
    if _RUNS not in item.stash:
        given = item.config.getoption("--roundoff-artifacts")
        kept_in = None if given is None else Path(item.config.invocation_params.dir, given)
        item.stash[_RUNS] = RunsOfTest(item.nodeid, kept_in=kept_in)
    return item.stash[_RUNS]
