"""Loads the compiled kernels if there are any; needs no torch."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType


@functools.cache
def compiled_kernels() -> ModuleType | None:
    """Return the compiled kernels, or None if they were not built or `ROUNDOFF_KERNELS=torch` disables them."""
    if os.environ.get("ROUNDOFF_KERNELS") == "torch":
        return None
    try:
        return importlib.import_module("roundoff.kernels._compiled")
    except ImportError:
        return None


def kernels_in_use() -> str:
    """Describe the kernels in use on the CPU: `compiled (x86-64-v4)`, or `torch` and why."""
    module = compiled_kernels()
    if module is not None:
        return f"compiled ({module.level()})"
    if os.environ.get("ROUNDOFF_KERNELS") == "torch":
        return "torch (ROUNDOFF_KERNELS=torch is set)"
    return "torch (the compiled kernels were not built)"
