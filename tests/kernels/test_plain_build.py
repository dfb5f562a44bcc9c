"""The kernels as they are compiled where there are no x86 instruction sets, and the tests of kernels with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.building import ROOT, build_wheel

RUN_TESTS = """
import importlib.util, sys
import pytest
import roundoff.kernels

name = "roundoff.kernels._compiled"
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
print(roundoff.kernels.kernels_in_use())
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler is installed")
def test_a_build_without_instruction_sets_passes_the_tests_of_kernels(tmp_path: Path):
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with zipfile.ZipFile(build_wheel(tmp_path, {**os.environ, "PATH": scripts}, "ROUNDOFF_PLAIN=ON")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.startswith("roundoff/kernels/_compiled."))
        plain = wheel.extract(name, tmp_path)
    command = [sys.executable, "-c", RUN_TESTS, plain, "tests/kernels"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.splitlines()[0] == "compiled (plain)"
