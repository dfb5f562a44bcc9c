"""`roundoff doctor`: whether this installation works, and which optional parts are missing."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import json_option
from roundoff.cli.terminal import echo, exit_code_of, without_torch
from roundoff.console import columns
from roundoff.words import plural, wrap

if TYPE_CHECKING:
    from roundoff.cli.self_test import Check
    from roundoff.cli.torch_probes import PrivateCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that works once its packages can be imported and its programs are on the path."""

    name: str
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    fix: str

    def missing(self) -> tuple[str, ...]:
        """Name what is not installed; nothing is imported to find out."""
        packages = [name for name in self.packages if importlib.util.find_spec(name) is None]
        programs = [name for name in self.programs if shutil.which(name) is None]
        return (*packages, *programs)


FEATURES = (
    Feature(name="watching, recording, training", packages=("torch",), fix="pip install 'roundoff[torch]'"),
    Feature(name="checkpoints of Keras", packages=("h5py",), fix="pip install 'roundoff[checkpoints]'"),
    Feature(name="experiments on a Ray cluster", packages=("ray",), fix="pip install 'roundoff[cluster]'"),
    Feature(name="Hugging Face models", packages=("transformers",), fix="pip install 'roundoff[hf]'"),
    Feature(name="Hugging Face Trainer and Accelerate", packages=("accelerate",), fix="pip install 'roundoff[hf]'"),
    Feature(name="Lightning", packages=("lightning",), fix="pip install 'roundoff[lightning]'"),
    Feature(name="pictures from a folder", packages=("PIL",), fix="pip install 'roundoff[images]'"),
    Feature(name="the documentation as pages", packages=("mkdocs", "material"), fix="pip install 'roundoff[docs]'"),
    Feature(name="runs live in a browser", packages=("starlette", "uvicorn"), fix="pip install 'roundoff[serve]'"),
    Feature(name="runs for agents", packages=("mcp", "starlette"), fix="pip install 'roundoff[mcp]'"),
    Feature(name="TensorBoard logs", packages=("tensorboard",), fix="pip install 'roundoff[tensorboard]'"),
    Feature(name="native stacks of a crash or hang", programs=("gdb",), fix="apt install gdb"),
    Feature(name="memory checks of the compiled kernels", programs=("valgrind",), fix="apt install valgrind"),
)
"""One line for each; none of them is needed to look at runs."""


ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
CORE_PACKAGES = ("numpy", ZSTD, "safetensors", "click", "rich", "plotly", "tomli-w")
SHOWN_VERSIONS = ("torch", "numpy", "safetensors")
WITHOUT_TORCH = "roundoff works here, without torch: it can show, diagnose and compare runs, not make them."


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
    """Everything `roundoff doctor` reports; the JSON has the same names. Devices and kernels need torch."""

    problems: tuple[Problem, ...]
    versions: dict[str, str | None]
    devices: tuple[str, ...] = ()
    num_threads: int | None = None
    kernels: str | None = None
    kernels_fix: str | None = None
    torch_note: str | None = None
    """What is to be said of this torch's version, if it is none of those that roundoff was tested with."""
    private_calls: tuple[PrivateCall, ...] = ()
    self_test: tuple[Check, ...] = ()
    features: tuple[FeatureState, ...] = ()


def examine(*, self_test: bool = False) -> Health:
    """Look at this installation; imports torch and every other package the core needs."""
    versions = {
        "roundoff": version_of("roundoff"),
        "python": platform.python_version(),
        **{name: version_of(name) for name in SHOWN_VERSIONS},
    }
    states = tuple(
        FeatureState(name=feature.name, missing=missing, fix=feature.fix if missing else None)
        for feature in FEATURES
        for missing in [feature.missing()]
    )
    problems = [
        Problem(what=f"{name} cannot be imported: {error}", fix=_install(name))
        for name in CORE_PACKAGES
        if (error := _import_error(name))
    ]
    if versions["torch"] is None:
        return Health(problems=tuple(problems), versions=versions, features=states)
    if error := _import_error("torch"):
        problems.append(Problem(what=f"torch cannot be imported: {error}", fix=_install("torch")))
    if error or _import_error("numpy"):
        return Health(problems=tuple(problems), versions=versions, features=states)

    health = Health(problems=tuple(problems), versions=versions, features=states)
    try:
        return _examine_torch(health, self_test=self_test)
    except (AttributeError, ImportError) as error:  # a torch that is too old, or too new
        problems.append(Problem(what=f"roundoff cannot use torch {versions['torch']}: {error}", fix=_install("torch")))
    return dataclasses.replace(health, problems=tuple(problems))


def _examine_torch(health: Health, *, self_test: bool) -> Health:
    """Add what is known of this torch: its devices, kernels, and whether roundoff can work with it."""
    import torch

    from roundoff.cli.self_test import run_self_test
    from roundoff.kernels import compiled_kernels, kernels_in_use
    from roundoff.torch_private import OLDEST_TESTED

    devices = _devices()
    problems = [
        Problem(what=f"{device} cannot add 1 and 1: {answer}", fix="check its driver, or hide the device")
        for device in devices
        if (answer := _one_and_one(device)) != "2.0"
    ]
    version, is_old, note = _torch_version()
    if is_old:
        what = f"torch {version} is installed, but roundoff needs {_series(OLDEST_TESTED)} or newer."
        problems.append(Problem(what=what, fix=_install("torch")))
    private_calls = _private_calls()
    problems += [
        Problem(what=f"this torch has no {call.name}, which is used for {call.used_for}.", fix=_install("torch"))
        for call in private_calls
        if call.is_essential and not call.present
    ]
    checks = run_self_test() if self_test else ()
    problems += [
        Problem(what=f"self-test failed: '{check.name}': {check.failure}", fix="use another version of torch")
        for check in checks
        if not check.passed
    ]
    return dataclasses.replace(
        health,
        problems=(*health.problems, *problems),
        devices=devices,
        num_threads=torch.get_num_threads(),
        kernels=kernels_in_use(),
        kernels_fix=None if compiled_kernels() else how_to_get_kernels(),
        torch_note=note,
        private_calls=private_calls,
        self_test=checks,
    )


def _torch_version() -> tuple[str, bool, str | None]:
    """Return torch's version, whether it is too old, and what to say of it if it is newer than those tested."""
    from roundoff.torch_private import NEWEST_TESTED, OLDEST_TESTED, torch_series, untested_version

    version = untested_version()
    is_old = version is not None and torch_series() < OLDEST_TESTED
    if version is None or is_old:
        return version or "", is_old, None
    tested = f"roundoff is tested with {_series(OLDEST_TESTED)} to {_series(NEWEST_TESTED)}"
    return version, False, f"{version} is untested: {tested}; `roundoff doctor --self-test` tries it"


def _series(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def how_to_get_kernels() -> str:
    """Return what to do so that the compiled kernels are built and used."""
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


def _import_error(package: str) -> str | None:
    try:
        importlib.import_module(package.replace("-", "_"))
    except (ImportError, OSError) as error:  # OSError: a shared library that is not there
        return str(error)
    return None


def _install(package: str) -> str:
    """Return the command that installs a package as roundoff's own metadata asks for it: `pip install 'rich>=13'`."""
    for line in importlib.metadata.requires("roundoff") or ():
        if re.match(rf"{package}(?![\w.-])", line):
            return f"pip install '{line.partition(';')[0].strip()}'"
    return f"pip install {package}"


def _devices() -> tuple[str, ...]:
    import torch

    known = getattr(torch, "accelerator", None)  # an old torch has none
    accelerator = None if known is None else known.current_accelerator(check_available=True)
    if accelerator is None:
        return ("cpu",)
    return ("cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())))


def _one_and_one(device: str) -> str:
    import torch

    try:
        return str(torch.ones(2, device=device).sum().item())
    except Exception as error:  # whatever a driver raises is its answer
        return str(error).partition("\n")[0]


def _private_calls() -> tuple[PrivateCall, ...]:
    from roundoff.cli.torch_probes import probe

    return tuple(probe())


@click.command("doctor", epilog="Example: roundoff doctor --self-test")
@click.option("--self-test", is_flag=True, help="Record, watch and replay a small training, and compare the results.")
@json_option("Print one JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, self_test: bool, as_json: bool) -> None:
    """Check this installation and report what is missing.

    Ends with 0 if everything the core needs works, and with 1 if not; optional things that are missing do not count.
    """
    if self_test and importlib.util.find_spec("torch") is None:
        raise without_torch("`roundoff doctor --self-test`")
    health = examine(self_test=self_test)
    if as_json:
        echo_json("doctor", {"ok": not health.problems, **dataclasses.asdict(health)}, indent=1)
    else:
        echo(to_text(health))
    ctx.exit(exit_code_of(bool(health.problems)))


def to_text(health: Health) -> str:
    """Format the findings for a terminal: the verdict, what is broken, then what is installed."""
    return "\n".join([*_verdict(health), "", *_inventory(health), *_missing(health)])


def _verdict(health: Health) -> Iterator[str]:
    if not health.problems:
        yield "roundoff works here." if health.versions["torch"] else WITHOUT_TORCH
        return
    yield f"roundoff does not work here: {plural(len(health.problems), 'problem')}."
    for problem in health.problems:
        yield f"  {problem.what}"
        yield f"    fix: {problem.fix}"


def _inventory(health: Health) -> Iterator[str]:
    yield _row("versions", ", ".join(f"{name} {version or 'missing'}" for name, version in health.versions.items()))
    if health.num_threads is not None:
        yield _row("devices", f"{', '.join(health.devices)} ({plural(health.num_threads, 'CPU thread')})")
    if health.kernels is not None:
        yield _row("kernels", health.kernels)
    if health.kernels_fix is not None:
        yield _row("", "slower, but everything works")
        yield _row("", f"fix: {health.kernels_fix}")
    if health.private_calls:
        present = sum(call.present for call in health.private_calls)
        yield _row("torch", f"{present} of {len(health.private_calls)} private calls are there")
    if health.torch_note is not None:
        yield _row("", health.torch_note)
    for call in health.private_calls:
        if not call.present:
            yield _row("off", f"{call.used_for} (no {call.name})")
    for check in health.self_test:
        yield _row("self-test", f"{'ok' if check.passed else 'FAILED'}: {check.name}")
    for feature in health.features:
        if not feature.missing:
            yield _row("optional", f"{feature.name}: ready")


def _missing(health: Health) -> Iterator[str]:
    for feature in health.features:
        if feature.missing:
            yield _row("optional", f"{feature.name}: {' and '.join(feature.missing)} missing")
            yield _row("", f"fix: {feature.fix}")


def _row(label: str, text: str) -> str:
    lines = wrap(text, width=columns() - 11)
    return "\n".join(f"{'' if number else label:<10} {line}" for number, line in enumerate(lines))
