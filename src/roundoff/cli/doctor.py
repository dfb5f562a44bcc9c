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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.options import json_option
from roundoff.cli.console.screen import columns
from roundoff.words import plural, wrap

if TYPE_CHECKING:
    from roundoff.record.torch_private import PrivateCall


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
    Feature(name="checkpoints of Keras", packages=("h5py",), fix="pip install 'roundoff[checkpoints]'"),
    Feature(name="experiments on a Ray cluster", packages=("ray",), fix="pip install 'roundoff[cluster]'"),
    Feature(name="Hugging Face models", packages=("transformers",), fix="pip install 'roundoff[hf]'"),
    Feature(name="Hugging Face Trainer and Accelerate", packages=("accelerate",), fix="pip install 'roundoff[hf]'"),
    Feature(name="Lightning", packages=("lightning",), fix="pip install 'roundoff[lightning]'"),
    Feature(name="pictures from a folder", packages=("PIL",), fix="pip install 'roundoff[images]'"),
    Feature(name="the documentation as pages", packages=("mkdocs", "material"), fix="pip install 'roundoff[docs]'"),
    Feature(name="runs live in a browser", packages=("starlette", "uvicorn"), fix="pip install 'roundoff[serve]'"),
    Feature(name="TensorBoard logs", packages=("tensorboard",), fix="pip install 'roundoff[tensorboard]'"),
    Feature(name="native stacks of a crash or hang", programs=("gdb",), fix="apt install gdb"),
    Feature(name="memory checks of the compiled kernels", programs=("valgrind",), fix="apt install valgrind"),
)
"""One line for each; none of them is needed to record, read or compare."""


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


@click.command("doctor", epilog="Example: roundoff doctor --json")
@json_option("Print one JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Check this installation and report what is missing.

    Ends with 0 if everything the core needs works, and with 1 if not; optional things that are missing do not count.
    """
    health = examine()
    click.echo(to_json(health) if as_json else to_text(health))
    ctx.exit(1 if health.problems else 0)


def to_json(health: Health) -> str:
    """Lay out the findings as one JSON object, with `ok` first."""
    return json.dumps({"ok": not health.problems, **dataclasses.asdict(health)}, indent=1)


def to_text(health: Health) -> str:
    """Lay out the findings for a terminal: the verdict, what is broken, then what there is."""
    return "\n".join([*_verdict(health), "", *_inventory(health), *_missing(health)])


def _verdict(health: Health) -> Iterator[str]:
    if not health.problems:
        yield "roundoff works here."
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
