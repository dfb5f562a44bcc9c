"""One-pass loops over tensor memory, compiled where possible, otherwise in torch operations."""

from roundoff.kernels.availability import compiled, kernels_in_use
from roundoff.kernels.summaries import histogram, summarize

__all__ = ["compiled", "histogram", "kernels_in_use", "summarize"]
