"""Runs each file of tests in a process of its own with the simulated device: torch never forgets a registered one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_IS_ON_DEVICE = "ROUNDOFF_TESTS_ON_DEVICE"
_NO_COMPILER = "no C++ compiler to build the simulated device with"


@pytest.hookimpl
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect a file of tests as one test that runs it elsewhere; as itself when it is run there."""
    if _IS_ON_DEVICE in os.environ or not module_path.name.startswith("test_"):
        return None
    module: pytest.Module = _FileOnDevice.from_parent(parent, path=module_path)
    return module


class _FileOnDevice(pytest.Module):
    def collect(self) -> Iterator[pytest.Item]:
        yield _RunOnDevice.from_parent(self, name="on_device")


class _RunOnDevice(pytest.Item):
    def runtest(self) -> None:
        from tests.device import simulated_device

        if simulated_device.compiler() is None:
            pytest.skip(_NO_COMPILER)
        chosen = self.config.getoption("markexpr")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, str(self.path)]
        environment = {**os.environ, _IS_ON_DEVICE: "1"}
        done = subprocess.run(command, cwd=self.config.rootpath, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise _FailedOnDevice(f"{done.stdout}\n{done.stderr}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _FailedOnDevice):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class _FailedOnDevice(Exception):
    """What pytest printed in the other process."""


@pytest.fixture
def without_fp64() -> Iterator[None]:
    """Let the device have no numbers of 64 bits."""
    from roundoff.kernels.compiled import has_fp64
    from tests.device.simulated_device import behaving

    has_fp64.cache_clear()
    with behaving(fp64=False):
        yield
    has_fp64.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Register the device with torch."""
    if _IS_ON_DEVICE in os.environ:
        from tests.device import simulated_device

        if simulated_device.compiler() is None:
            pytest.skip(_NO_COMPILER)
        simulated_device.load()
