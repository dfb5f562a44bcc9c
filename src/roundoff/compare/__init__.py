"""Lines up two runs, resumptions, checkpoints, curves, folders of tensors or engines, and measures their distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.compare.checkpoints.checkpoint_comparison import compare_checkpoints as compare_checkpoints
    from roundoff.compare.curves.curve_comparison import compare_curves as compare_curves
    from roundoff.compare.curves.curve_files import read_curve as read_curve
    from roundoff.compare.logprobs.logprob_comparison import compare_logprobs as compare_logprobs
    from roundoff.compare.logprobs.logprob_files import read_logprobs as read_logprobs
    from roundoff.compare.logprobs.save_logprobs import save_logprobs as save_logprobs
    from roundoff.compare.models.model_comparison import compare_models as compare_models
    from roundoff.compare.resume.resume_comparison import compare_resumption as compare_resumption
    from roundoff.compare.runs.run_comparison import compare_runs as compare_runs
    from roundoff.compare.tensors.save_tensor import save_tensor as save_tensor
    from roundoff.compare.tensors.tensor_comparison import compare_tensors as compare_tensors

_HOMES = {
    "compare_checkpoints": "roundoff.compare.checkpoints.checkpoint_comparison",
    "compare_curves": "roundoff.compare.curves.curve_comparison",
    "compare_logprobs": "roundoff.compare.logprobs.logprob_comparison",
    "compare_models": "roundoff.compare.models.model_comparison",
    "compare_resumption": "roundoff.compare.resume.resume_comparison",
    "compare_runs": "roundoff.compare.runs.run_comparison",
    "compare_tensors": "roundoff.compare.tensors.tensor_comparison",
    "read_curve": "roundoff.compare.curves.curve_files",
    "read_logprobs": "roundoff.compare.logprobs.logprob_files",
    "save_logprobs": "roundoff.compare.logprobs.save_logprobs",
    "save_tensor": "roundoff.compare.tensors.save_tensor",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
