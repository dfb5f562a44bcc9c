"""Which of two models is nearer to fp64, by outputs and gradients: for compiled code, whose ops cannot be seen."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.compare.models.model_step import Inputs, Loss, call_model, clone_tensors, keeping_random_state, loss_of
from roundoff.torch_private import tree_leaves, tree_map_only
from roundoff.words import plural

_ALIKE = 1.25
"""Errors within this factor of each other are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAccuracy:
    """The distance of one output or gradient to that of the reference in fp64, over its norm."""

    name: str
    """`output 0`, or `gradient of` a parameter of the reference."""
    reference: float
    candidate: float

    @property
    def ratio(self) -> float:
        """The candidate's distance over the reference's; 1 if both are 0."""
        if not self.reference:
            return math.inf if self.candidate else 1.0
        return self.candidate / self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccuracy:
    """How far the results of two models are from those in fp64."""

    tensors: tuple[TensorAccuracy, ...]
    compiled: tuple[str, ...]
    """The sides that are compiled: `reference`, `candidate`."""

    @property
    def verdict(self) -> str:
        """Which model is nearer, in a sentence or two."""
        ratios = [each.ratio for each in self.tensors]
        if not ratios:
            return "Nothing could be compared with fp64."
        nearer = sum(ratio > _ALIKE for ratio in ratios), sum(ratio < 1 / _ALIKE for ratio in ratios)
        middle = statistics.median(ratios)
        times = f"{max(middle, 1 / middle if middle else math.inf):.2g} times"
        side = f"{times} farther from fp64" if middle > 1 else f"{times} nearer to fp64"
        if 1 / _ALIKE <= middle <= _ALIKE:
            side = "as near to fp64 as the reference"
        counts = (
            f"the reference is nearer in {nearer[0]}, the candidate in {nearer[1]} of {plural(len(ratios), 'result')}"
        )
        notes = [f"Typically the candidate is {side}: {counts}."]
        if self.compiled:
            who = " and the ".join(self.compiled)
            notes.append(f"The {who} ran compiled for this; the ops are those of the eager code.")
        return " ".join(notes)


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model was made by `torch.compile`."""
    return isinstance(getattr(model, "_orig_mod", None), nn.Module)


def measure_accuracy(
    models: tuple[nn.Module, nn.Module],
    inputs: Inputs,
    targets: Any,
    losses: tuple[Loss | None, Loss | None],
    *,
    pairs: Sequence[tuple[str, str]],
) -> ModelAccuracy:
    """Run both models, compiled ones compiled, and the reference in fp64; compare their outputs and gradients.

    Args:
        models: the reference and the candidate, with the same weights; they are not changed, gradients excepted.
        inputs: as for `compare_models`.
        targets: what the losses take after the output; None if nothing.
        losses: of the reference and of the candidate.
        pairs: names of parameters in the reference and the candidate whose gradients have one layout.
    """
    exact_model = copy.deepcopy(getattr(models[0], "_orig_mod", models[0])).double()
    exact = _results(exact_model, _widen(inputs), _widen(targets), losses[0])
    reference, candidate = (_results(model, inputs, targets, loss) for model, loss in zip(models, losses, strict=True))
    keys = [(key, key) for key in exact if key.startswith("output")]
    keys += [(_gradient_name(first), _gradient_name(second)) for first, second in pairs]
    tensors = [
        TensorAccuracy(
            name=first,
            reference=_distance(reference[first], exact[first]),
            candidate=_distance(candidate[second], exact[first]),
        )
        for first, second in keys
        if first in exact
        and first in reference
        and second in candidate
        and candidate[second].shape == exact[first].shape
    ]
    sides = ("reference", "candidate")
    compiled = tuple(side for side, model in zip(sides, models, strict=True) if is_compiled(model))
    return ModelAccuracy(tensors=tuple(tensors), compiled=compiled)


def _results(model: nn.Module, inputs: Inputs, targets: Any, loss: Loss | None) -> dict[str, Tensor]:
    """Return the outputs and gradients of one step, by name; compiled parts have the names of their eager code."""
    with keeping_random_state(), torch.enable_grad():
        model.zero_grad(set_to_none=True)
        output = call_model(model, clone_tensors(inputs))
        value = loss_of(output, clone_tensors(targets), loss)
        if value.requires_grad:
            value.backward()
    floats = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    found = {f"output {place}": x.detach() for place, x in enumerate(floats)}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[_gradient_name(name)] = parameter.grad.detach().clone()
    model.zero_grad(set_to_none=True)
    return found


def _gradient_name(parameter: str) -> str:
    return f"gradient of {parameter.replace('_orig_mod.', '')}"


def _widen(value: Any) -> Any:
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, value)


def _distance(x: Tensor, exact: Tensor) -> float:
    norm = float(exact.norm())
    return float((x.to(exact) - exact).norm()) / norm if norm else float(x.double().norm())
