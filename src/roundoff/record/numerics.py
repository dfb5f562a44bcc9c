"""What of a process's surroundings decides how its numbers come out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import torch

from roundoff.runs import JsonValue, RunWriter

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
