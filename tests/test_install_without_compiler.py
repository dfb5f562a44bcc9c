"""Builds and installs the package where no C++ compiler can be found, and uses it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.building import build_wheel, checked

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    wheel: Path
    bin: Path
    environment: dict[str, str]

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / program), *arguments]
        return subprocess.run(command, env=self.environment, cwd=self.bin, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The package in a fresh environment, built without a compiler; torch and the rest are borrowed from this one."""
    folder = tmp_path_factory.mktemp("without-compiler")
    environment = without_compiler(folder)
    checked([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], environment)
    wheel = build_wheel(folder, environment)
    python = folder / "venv" / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    checked([sys.executable, *install], environment)
    borrow_packages(python)
    return Installed(wheel=wheel, bin=python.parent, environment=environment)


def without_compiler(folder: Path) -> dict[str, str]:
    """Return an environment whose path holds what a build needs, except for compilers, and which names a wrong one."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja"):
        found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
        assert found is not None, f"{name} is part of the dev extra"
        (tools / name).symlink_to(found)
    gone = {"PYTHONPATH", "ROUNDOFF_KERNELS", "CFLAGS", "CXXFLAGS"}
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return {**kept, "PATH": str(tools), "CC": "/no/such/compiler", "CXX": "/no/such/compiler"}


def borrow_packages(python: Path) -> None:
    """Let the fresh environment see this one's packages, after its own; this one's roundoff stays unseen."""
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True, timeout=600).stdout.strip()
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib"))


def test_the_wheel_holds_everything_but_the_compiled_kernels(installed: Installed):
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == []
    assert {"roundoff/__init__.py", "roundoff/py.typed", "roundoff/train/digits.npz"} <= set(names)
    assert {"roundoff/docs/index.md", "roundoff/docs/watch.md"} <= set(names)
    assert {"roundoff/report/assets/page.css", "roundoff/report/assets/page.js"} <= set(names)
    assert [name for name in names if name.endswith("licenses/NOTICE")] != []


def test_the_torch_kernels_serve(installed: Installed):
    code = (
        "import torch, roundoff.kernels as kernels\n"
        "print(kernels.__file__)\n"
        "print(kernels.kernels_in_use())\n"
        "print(kernels.summarize(torch.tensor([3.0, -4.0]))[:2].tolist())"
    )
    answer = installed.run("python", "-c", code)
    assert answer.returncode == 0, answer.stderr
    home, kernels, summary = answer.stdout.splitlines()
    assert Path(home).is_relative_to(installed.bin.parent)
    assert kernels == "torch (the compiled kernels were not built)"
    assert summary == "[-4.0, 3.0]"


def test_the_digits_are_there(installed: Installed):
    answer = installed.run("python", "-c", "from roundoff.train import load_digits; print(len(load_digits()[1]))")
    assert answer.stdout == "1797\n"


def test_doctor_says_how_to_get_the_compiled_ones(installed: Installed):
    answer = installed.run("roundoff", "doctor", "--json")
    found = json.loads(answer.stdout)
    assert (answer.returncode, found["ok"]) == (0, True)
    assert found["kernels"] == "torch (the compiled kernels were not built)"
    assert found["kernels_fix"].startswith("install g++ and run pip install --force-reinstall --no-deps ")
    assert str(ROOT) not in found["kernels_fix"]
