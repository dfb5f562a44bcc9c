"""What run.json says about the process: versions, hardware, environment, ranks."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch

from roundoff.kernels import kernels_in_use
from roundoff.runs import JsonValue, RunInfo, RunWriter
from roundoff.runs.records.info import SIMULATORS
from roundoff.torch_private import NEWEST_TESTED, OLDEST_TESTED, untested_version

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NVLS_ENABLE",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B",
)
"""Only these variables are recorded: an environment may hold secrets."""

FLAGS: dict[str, Callable[[], JsonValue]] = {
    "torch.seed": lambda: torch.initial_seed() % 2**63,
    "torch.default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    "torch.num_threads": torch.get_num_threads,
    "torch.num_interop_threads": torch.get_num_interop_threads,
    "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "torch.float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch.cuda.matmul.allow_fp16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "torch.cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "torch.cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "torch.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "torch.mkldnn.enabled": lambda: torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled),
    "torch.sdp.flash": torch.backends.cuda.flash_sdp_enabled,
    "torch.sdp.mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "torch.sdp.math": torch.backends.cuda.math_sdp_enabled,
    "torch.sdp.cudnn": torch.backends.cuda.cudnn_sdp_enabled,
}
"""Torch's own settings, by the name they have in run.json."""


def numeric_environment() -> dict[str, JsonValue]:
    """Return the variables of the list that are set, and torch's switches; what cannot be read is left out."""
    found: dict[str, JsonValue] = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    for name, read in FLAGS.items():
        try:
            value = read()
        except (
            AttributeError,
            RuntimeError,
        ):  # another build of torch, or the old and the new way of setting it were mixed
            continue
        if isinstance(value, bool | int | str):
            found[name] = value
    return found


def note_environment(writer: RunWriter) -> None:
    """Write it into run.json when the first step begins: scripts set switches and seeds, and import, before that."""
    simulators = _versions([name for name in SIMULATORS if name in sys.modules])
    packages = {**writer.info.packages, **simulators}
    writer.update_info(replace(writer.info, environment=numeric_environment(), packages=packages))


_PACKAGES = ("roundoff", "torch", "numpy", "safetensors", "transformers", "accelerate", "lightning")


def describe_process(*, seed: int | None, settings: dict[str, JsonValue], command: tuple[str, ...] | None) -> RunInfo:
    """Gather what run.json says about this process before its training starts."""
    return RunInfo(
        command=command if command is not None else tuple(sys.argv),
        seed=torch.initial_seed() % 2**63 if seed is None else seed,
        packages={"python": platform.python_version(), **_versions(_PACKAGES)},
        hardware=_hardware(),
        git_commit=_git_commit(Path.cwd()),
        ranks=world_size(),
        launch=launch_name(),
        settings=settings,
    )


def create_run(
    to: str | Path | Callable[[], Path],
    *,
    seed: int | None,
    settings: dict[str, JsonValue],
    command: tuple[str, ...] | None,
    stores_data: bool,
    strict: bool = False,
) -> RunWriter:
    """Create the run folder of a training in this process, with its run.json; `to` may be a function that names it."""
    info = replace(describe_process(seed=seed, settings=settings, command=command), stores_data=stores_data)
    writer = RunWriter.create(to() if callable(to) else to, info, rank=rank(), strict=strict)
    _say_if_untested(writer)
    return writer


def _say_if_untested(writer: RunWriter) -> None:
    """Report, once per process and on one rank, that roundoff is not tested with this torch."""
    version = untested_version()
    if version is None or rank() != 0 or version in _reported_versions():
        return
    _reported_versions().add(version)
    first, last = (f"{major}.{minor}" for major, minor in (OLDEST_TESTED, NEWEST_TESTED))
    tested = f"torch {version} is untested (tested: {first} to {last})"
    writer.say(f"{tested}; `roundoff doctor --self-test` tries it in a few seconds.")


@functools.cache
def _reported_versions() -> set[str]:
    return set()


def rank() -> int:
    """Return this process's rank: torch.distributed's if it is up, else the launcher's, else 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return _from_launcher("RANK", 0)


def world_size() -> int:
    """Return how many ranks train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return _from_launcher("WORLD_SIZE", 1)


def local_ranks() -> range:
    """Return the ranks that a launcher has started on this machine; none without a launcher that says so."""
    first = _from_launcher("RANK", 0) - _from_launcher("LOCAL_RANK", 0)
    return range(first, first + _from_launcher("LOCAL_WORLD_SIZE", 0))


def _from_launcher(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else otherwise


_LAUNCHER = "ROUNDOFF_LAUNCHER"
"""Set by a process that forks another and supervises it: its own pid and that of its parent."""


def launch_name() -> str | None:
    """Return a name that the ranks of one launch share; None for a single process."""
    if "WORLD_SIZE" not in os.environ:
        return None
    parts = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
    parts.append(str(restart_count()))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        parts.append(str(_launcher()))  # one launcher on one machine: distinguishes this launch from earlier ones
    return ":".join(parts)


def restart_count() -> int:
    """Return how often the launcher has restarted its ranks after a failure."""
    return _from_launcher("TORCHELASTIC_RESTART_COUNT", 0)


def _launcher() -> int:
    """Return the pid of the process that started this one, or its supervisor (watch/process/supervise.py)."""
    parent, _, launcher = os.environ.get(_LAUNCHER, "").partition(":")
    return int(launcher) if parent == str(os.getppid()) and launcher.isdecimal() else os.getppid()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _hardware() -> dict[str, JsonValue]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "accelerator": str(accelerator) if accelerator is not None else None,
        "accelerators": torch.accelerator.device_count() if accelerator is not None else 0,
        "kernels": kernels_in_use(),
    }


def _git_commit(folder: Path) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
