"""Builds the package as pip does, without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
INGREDIENTS = ["pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "NOTICE", "src", "csrc", "docs"]


def build_wheel(folder: Path, environment: Mapping[str, str], *settings: str) -> Path:
    """Build a copy of the project, with the tools of this environment: nothing is downloaded.

    `settings` are given to CMake, such as `ROUNDOFF_PLAIN=ON`.
    """
    copy = folder / "copy"
    copy.mkdir()
    for name in INGREDIENTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, copy / name)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    defines = [f"--config-settings=cmake.define.{setting}" for setting in settings]
    checked([sys.executable, "-m", "pip", "wheel", *options, *defines, str(copy)], environment)
    (wheel,) = folder.glob("roundoff-*.whl")
    return wheel


def checked(command: list[str], environment: Mapping[str, str]) -> None:
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stdout + answer.stderr
