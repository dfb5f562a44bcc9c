"""What this installation has, what is broken in it, and how to mend that."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundoff.cli.features import FEATURES, Feature

if TYPE_CHECKING:
    from roundoff.record.torch_private import PrivateCall

CORE_PACKAGES = ("torch", "numpy", "pyarrow", "safetensors", "click", "rich", "plotly")
SHOWN_VERSIONS = ("torch", "numpy", "pyarrow", "safetensors")
TORCH_SERIES = "2.13"
"""The only torch that roundoff is tested with: it depends on private calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something the core needs and does not have."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureState:
    """A feature that needs help from outside, and what it lacks."""

    name: str
    missing: tuple[str, ...]
    fix: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Everything `roundoff doctor` tells; the JSON has the same names."""

    problems: tuple[Problem, ...]
    versions: dict[str, str | None]
    devices: tuple[str, ...] = ()
    num_threads: int | None = None
    kernels: str | None = None
    kernels_fix: str | None = None
    private_calls: tuple[PrivateCall, ...] = ()
    features: tuple[FeatureState, ...] = ()


def examine(features: Sequence[Feature] = FEATURES) -> Health:
    """Look at this installation; imports torch and every other package the core needs."""
    versions = {
        "roundoff": version_of("roundoff"),
        "python": platform.python_version(),
        **{name: version_of(name) for name in SHOWN_VERSIONS},
    }
    states = tuple(_state(feature) for feature in features)
    problems = [*_import_problems(CORE_PACKAGES), *_torch_version_problems(versions["torch"])]
    if _import_error("torch") or _import_error("numpy"):
        return Health(problems=tuple(problems), versions=versions, features=states)

    import torch

    from roundoff.kernels import compiled, kernels_in_use

    devices = _devices()
    problems += _device_problems(devices)
    try:
        private_calls = _private_calls()
    except ImportError as error:
        private_calls = ()
        problems.append(Problem(what=f"nothing can be recorded: {error}", fix=_install("torch")))
    problems += [_missing_call(call) for call in private_calls if not call.present]
    return Health(
        problems=tuple(problems),
        versions=versions,
        devices=devices,
        num_threads=torch.get_num_threads(),
        kernels=kernels_in_use(),
        kernels_fix=None if compiled() else how_to_get_kernels(),
        private_calls=private_calls,
        features=states,
    )


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def how_to_get_kernels() -> str:
    """Say what to do so that the compiled kernels are built and used."""
    if os.environ.get("ROUNDOFF_KERNELS") == "torch":
        return "unset ROUNDOFF_KERNELS"
    install = f"pip install --force-reinstall --no-deps {_installed_from()}"
    has_compiler = any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++"))
    return f"run {install}" if has_compiler else f"install g++ and run {install}"


def _installed_from() -> str:
    """Return the words that make pip install this very roundoff again, built here."""
    recorded = importlib.metadata.distribution("roundoff").read_text("direct_url.json")
    origin = json.loads(recorded) if recorded else {}
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{origin['url']}"
    if "dir_info" in origin:
        folder = origin["url"].removeprefix("file://")
        return f"-e {folder}" if origin["dir_info"].get("editable") else folder
    return "--no-cache-dir --no-binary roundoff roundoff"


def _import_problems(packages: Sequence[str]) -> Iterator[Problem]:
    for name in packages:
        if error := _import_error(name):
            yield Problem(what=f"{name} cannot be imported: {error}", fix=_install(name))


def _import_error(package: str) -> str | None:
    try:
        importlib.import_module(package)
    except (ImportError, OSError) as error:  # OSError: a shared library that is not there
        return str(error)
    return None


def _torch_version_problems(version: str | None) -> Iterator[Problem]:
    if version is not None and not version.startswith(f"{TORCH_SERIES}."):
        what = f"torch {version} is installed, but roundoff is made for torch {TORCH_SERIES}."
        yield Problem(what=what, fix=_install("torch"))


def _install(package: str) -> str:
    """Return the command that installs a package as roundoff's own metadata asks for it: `pip install 'rich>=13'`."""
    for line in importlib.metadata.requires("roundoff") or ():
        if re.match(rf"{package}(?![\w.-])", line) and "extra ==" not in line:
            return f"pip install '{line}'"
    return f"pip install {package}"


def _devices() -> tuple[str, ...]:
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ("cpu",)
    return ("cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())))


def _device_problems(devices: Sequence[str]) -> Iterator[Problem]:
    for device in devices:
        if (answer := _one_and_one(device)) != "2.0":
            yield Problem(what=f"{device} cannot add 1 and 1: {answer}", fix="check its driver, or hide the device")


def _one_and_one(device: str) -> str:
    import torch

    try:
        return str(torch.ones(2, device=device).sum().item())
    except Exception as error:  # whatever a driver raises is its answer
        return str(error).partition("\n")[0]


def _private_calls() -> tuple[PrivateCall, ...]:
    from roundoff.record.torch_private import probe

    return tuple(probe())


def _missing_call(call: PrivateCall) -> Problem:
    what = f"this torch has no {call.name}, which is used for {call.used_for}."
    return Problem(what=what, fix=_install("torch"))


def _state(feature: Feature) -> FeatureState:
    missing = feature.missing()
    return FeatureState(name=feature.name, missing=missing, fix=feature.fix if missing else None)
