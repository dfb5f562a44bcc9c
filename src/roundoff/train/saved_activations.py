"""How much one forward keeps for its backward, where the recipe compresses that."""

from __future__ import annotations

from roundoff.precision import RecipeOptimizer
from roundoff.precision.activations import CompressedActivations


def saved_activation_bytes(optimizer: RecipeOptimizer) -> int | None:
    """Return the bytes that the latest training forward kept; None if the recipe does not compress activations."""
    for extra in optimizer.extras:
        if isinstance(extra, CompressedActivations):
            return extra.report().bytes_after
    return None
