"""What a run should say about where and how it was made."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch

from roundoff.kernels import kernels_in_use
from roundoff.runs import JsonValue, RunInfo, RunWriter

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
"""The variables that are written down, and no others: an environment may hold secrets."""

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
"""Torch's own switches, by the name under which they are written down."""


def numeric_environment() -> dict[str, JsonValue]:
    """Return the variables of the list that are set, and torch's switches; what cannot be told is left out."""
    found: dict[str, JsonValue] = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    for name, read in FLAGS.items():
        try:
            value = read()
        except (AttributeError, RuntimeError):  # another build of torch, or two ways of setting one switch mixed
            continue
        if isinstance(value, bool | int | str):
            found[name] = value
    return found


def note_environment(writer: RunWriter) -> None:
    """Write it into run.json; as the first step begins, since scripts set switches and seeds before that."""
    writer.update_info(replace(writer.info, environment=numeric_environment()))


_PACKAGES = ("roundoff", "torch", "numpy", "pyarrow", "safetensors", "transformers", "accelerate", "lightning")


def describe_process(*, seed: int | None, settings: dict[str, JsonValue], command: tuple[str, ...] | None) -> RunInfo:
    """Gather what run.json says about this process before its training starts."""
    return RunInfo(
        command=command if command is not None else tuple(sys.argv),
        seed=torch.initial_seed() % 2**63 if seed is None else seed,
        packages=_versions(),
        hardware=_hardware(),
        git_commit=_git_commit(Path.cwd()),
        ranks=world_size(),
        launch=launch_name(),
        settings=settings,
    )


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


def _from_launcher(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else otherwise


_LAUNCHER = "ROUNDOFF_LAUNCHER"
"""Set by a process that forks one to watch over: its own number and that of who started it."""


def launch_name() -> str | None:
    """Return what the ranks of one launch have in common, or None for a single process."""
    if "WORLD_SIZE" not in os.environ:
        return None
    parts = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
    parts.append(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        parts.append(str(_launcher()))  # one launcher on one machine: tells this launch from the one before
    return ":".join(parts)


def _launcher() -> int:
    """Return who started this process, or the process that forked it to watch over it (watch/process/supervise.py)."""
    parent, _, launcher = os.environ.get(_LAUNCHER, "").partition(":")
    return int(launcher) if parent == str(os.getppid()) and launcher.isdecimal() else os.getppid()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
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
