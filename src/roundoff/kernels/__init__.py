"""One-pass loops over tensor memory, compiled where possible, otherwise in torch operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.kernels.load import compiled_kernels as compiled_kernels
    from roundoff.kernels.load import kernels_in_use as kernels_in_use
    from roundoff.kernels.summaries import histogram as histogram
    from roundoff.kernels.summaries import summarize as summarize

__all__ = ["compiled_kernels", "histogram", "kernels_in_use", "summarize"]

_HOMES = {
    "compiled_kernels": "roundoff.kernels.load",
    "histogram": "roundoff.kernels.summaries",
    "kernels_in_use": "roundoff.kernels.load",
    "summarize": "roundoff.kernels.summaries",
}

__getattr__ = lazy_names(__name__, _HOMES)
