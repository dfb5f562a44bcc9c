"""What trained models are given in eval mode: whether it is the kind of input they train on, and the same samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.kernels import row as columns
from roundoff.kernels.host_copies import Reading
from roundoff.kernels.summaries import summarize
from roundoff.record.loop.sites import Sites
from roundoff.replay.state import Training
from roundoff.replay.swapping import local_part
from roundoff.runs import EvalInputProbe, HashColumns
from roundoff.watch.facts.step_batch import sample_hashes
from roundoff.watch.facts.tensor_hashes import hash_columns

_MAX_LOOKS = 8
_MAX_ELEMENTS = 2**22
_MAX_HASHED = 64
_MAX_HASHED_ELEMENTS = 2**24
"""In all evaluations together."""


class EvalInputs:
    """Describes the first argument of the first evaluations of trained models."""

    def __init__(self, training: Training, sites: Sites) -> None:
        self._training = training
        self._sites = sites
        self._num_looks = 0
        self._num_hashed = 0
        self._num_elements_left = _MAX_HASHED_ELEMENTS

    def wants(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        """Say whether to look at a call: few are, of models that train, on numbers of moderate size."""
        if self._num_looks >= _MAX_LOOKS or torch.is_grad_enabled() or not args or module not in self._training.models:
            return False
        x = args[0]
        is_tensor = type(x) is Tensor and x.is_floating_point() and not x.is_meta and x.layout is torch.strided
        return is_tensor and x.dim() > 1 and 1 < x.numel() <= _MAX_ELEMENTS

    def see(self, module: nn.Module, x: Tensor, step: int) -> Reading[EvalInputProbe | None]:
        """Describe an input."""
        self._num_looks += 1
        (host,) = yield [local_part(x.detach())]
        row = summarize(host)
        if row[columns.NUM_NAN] or row[columns.NUM_POSINF] or row[columns.NUM_NEGINF]:
            return None
        mean = float(row[columns.SUM]) / host.numel()
        return EvalInputProbe(
            step=step,
            place=f"{self._sites.names[self._sites.of_module(module, 0)]}[0]",
            shape=tuple(host.shape),
            mean=mean,
            std=math.sqrt(max(float(row[columns.SUM_SQUARES]) / host.numel() - mean * mean, 0.0)),
            min=float(row[columns.MIN]),
            max=float(row[columns.MAX]),
        )

    def hash_samples(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], step: int
    ) -> HashColumns | None:
        """Hash each sample of the first input, with the number of the evaluation in place of that of a microbatch.

        Inputs on an accelerator are left alone: evaluations have no end at which their copies would be read.
        """
        if self._num_hashed >= _MAX_HASHED or torch.is_grad_enabled() or module not in self._training.models:
            return None
        marked = [*((f"[{i}]", x) for i, x in enumerate(args)), *((f":{key}", x) for key, x in kwargs.items())]
        mark, x = next(((mark, x) for mark, x in marked if isinstance(x, Tensor)), ("", None))
        if type(x) is not Tensor or not x.is_cpu or x.dim() < 1 or len(x) < 2:
            return None
        if not 0 < x.numel() <= self._num_elements_left:
            return None
        place = f"{self._sites.names[self._sites.of_module(module, 0)]}{mark}"
        hashes = [(place, number) for number in sample_hashes(x.detach())]
        if len(hashes) < 2:
            return None
        self._num_hashed += 1
        self._num_elements_left -= x.numel()
        return hash_columns(step, "eval-sample", hashes, microbatch=self._num_hashed)
