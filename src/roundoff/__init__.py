"""roundoff trains neural networks at any numeric precision, and says why when it goes wrong.

PYTEST_DONT_REWRITE: pytest wants to rewrite the packages of its plugins, and complains if one is already imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundoff.compare.logprobs.save_logprobs import save_logprobs as save_logprobs
    from roundoff.compare.models.model_comparison import compare_models as compare_models
    from roundoff.compare.tensors.save_tensor import save_tensor as save_tensor
    from roundoff.errors import RoundoffError as RoundoffError
    from roundoff.experiments.bisect.smallest import smallest_bad as smallest_bad
    from roundoff.experiments.bisect.smallest import smallest_wide as smallest_wide
    from roundoff.formats import format_named as format_named
    from roundoff.formats import round_to as round_to
    from roundoff.precision import Recipe as Recipe
    from roundoff.precision import apply_recipe as apply_recipe
    from roundoff.record import recording as recording
    from roundoff.runs import Run as Run
    from roundoff.sensitivity.measuring import measuring_sensitivity as measuring_sensitivity
    from roundoff.switches import switching as switching
    from roundoff.watch.watching import watching as watching

    __version__: str

_HOMES = {
    "Recipe": "roundoff.precision",
    "RoundoffError": "roundoff.errors",
    "Run": "roundoff.runs",
    "apply_recipe": "roundoff.precision",
    "compare_models": "roundoff.compare.models.model_comparison",
    "format_named": "roundoff.formats",
    "measuring_sensitivity": "roundoff.sensitivity.measuring",
    "recording": "roundoff.record",
    "round_to": "roundoff.formats",
    "save_logprobs": "roundoff.compare.logprobs.save_logprobs",
    "save_tensor": "roundoff.compare.tensors.save_tensor",
    "smallest_bad": "roundoff.experiments.bisect.smallest",
    "smallest_wide": "roundoff.experiments.bisect.smallest",
    "switching": "roundoff.switches",
    "watching": "roundoff.watch.watching",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a public name on first use, since torch alone takes seconds."""
    if name == "__version__":
        from importlib.metadata import version

        return version("roundoff")
    if name not in _HOMES:
        raise AttributeError(f"module 'roundoff' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__
