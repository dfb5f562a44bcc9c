"""Synchronous mode: every device runs one op at a time, so that an error shows where it was made."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "AMD_SERIALIZE_KERNEL": "3",  # ROCm waits before and after each kernel
    "AMD_SERIALIZE_COPY": "3",
    "UR_L0_SERIALIZE": "2",  # Intel: one call at a time, and each blocks
    "ASCEND_LAUNCH_BLOCKING": "1",
    "CATCH_ASYNC_DISABLE": "1",  # Cambricon, whose library then logs the ops it runs
    "CNNL_MIN_LOG_LEVEL": "INFO",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}
"""What each vendor's libraries read when they are loaded; the others ignore it."""


def set_synchronous(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Set the switches of synchronous mode, and return them as they are now: `CUDA_LAUNCH_BLOCKING=1`.

    A switch that the user has set stays as it is. To be called before torch is loaded.

    >>> set_synchronous({"CUDA_LAUNCH_BLOCKING": "0"})[:2]
    ['CUDA_LAUNCH_BLOCKING=0', 'AMD_SERIALIZE_KERNEL=3']
    """
    return [f"{name}={environment.setdefault(name, value)}" for name, value in SWITCHES.items()]
