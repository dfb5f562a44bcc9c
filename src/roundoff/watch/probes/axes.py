"""Does a forward take one axis of a tensor for another? Samples, classes and places are followed through it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from roundoff.kernels.compiled import widest_float
from roundoff.record.loop.sites import Sites
from roundoff.record.source_lines import Sources
from roundoff.replay.criterion_calls import last_computation, maker_of
from roundoff.replay.player import replay_sources
from roundoff.replay.replayed_step import ReplayedCodeRaised, ReplayedStep, cut_batch
from roundoff.runs import AxesProbe, ConfusedAxes
from roundoff.torch_private import FunctionMode, hidden_from_modes
from roundoff.watch.probes.batch_mixing import are_related, dependent_samples, learns_inside, model_outputs
from roundoff.watch.probes.function_trail import (
    CalledFunction,
    FunctionTrail,
    differ,
    line_here,
    plain_tensors,
    site_here,
)

_MAX_FOUND = 8
_MAX_ELEMENTS = 2**24
_RESHAPES = frozenset({"view", "reshape", "view_as", "reshape_as", "unflatten", "flatten"})
_READS_AXES = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "einsum", "baddbmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "softmax", "log_softmax", "cross_entropy", "nll_loss",
    "layer_norm", "rms_norm", "batch_norm", "instance_norm", "scaled_dot_product_attention",
    "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu",
})  # fmt: skip
"""Functions to which the axes of their first operand mean different things."""
_SCORES_CLASSES = ("cross_entropy", "nll_loss")
_PRODUCTS = ("matmul", "__matmul__", "bmm")


def axes(step: ReplayedStep) -> AxesProbe:
    """Play the forward in eval mode and look at each call, then with the samples in another order."""
    sources = replay_sources()
    watcher = AxesWatcher(step.sites, sources)
    with step.in_state(), watcher:
        step.play(forward_only=True, is_training=False, sources=sources)
    if watcher.failure is not None:
        raise watcher.failure
    along_batch = _code_along_batch(step)
    found = (*watcher.found, *([] if along_batch is None else [along_batch]))
    return AxesProbe(step=step.tape.step, found=found)


class AxesWatcher(FunctionMode):
    """Notes calls in its block that take one axis for another; those inside another torch function are not seen."""

    def __init__(self, sites: Sites, sources: Sources) -> None:
        super().__init__()
        self.found: list[ConfusedAxes] = []
        self.failure: Exception | None = None
        self._sites = sites
        self._sources = sources
        self._mixed: dict[int, tuple[ref[Tensor], ConfusedAxes]] = {}
        """Tensors in which the numbers of different places share a row, and the reshape that made them so."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make the call, and look at what it was given."""
        result = func(*args, **(kwargs or {}))
        if self.failure is None and len(self.found) < _MAX_FOUND and args:
            try:
                with hidden_from_modes():
                    self._look(getattr(func, "__name__", ""), args, kwargs or {}, result)
            except Exception as error:
                self.failure = error  # ours: the step itself goes on
        return result

    def _look(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._follow_reshapes(name, args, kwargs, result)
        if name in _SCORES_CLASSES and torch.is_grad_enabled():
            scores, target = (*args, *kwargs.values())[:2]
            if _is_plain(scores) and _is_plain(target) and not target.is_floating_point() and scores.dim() > 1:
                self._check_classes(name, scores)
        elif name in _PRODUCTS or name == "einsum":
            for operand, axis in _contracted_axes(name, args):
                self._check_weights(name, operand, axis)

    def _follow_reshapes(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Follow a tensor whose axes were confused until a call depends on their meaning."""
        if name in _RESHAPES:
            if self._mixer_of(args[0]) is not None:
                return  # this one may undo the other
            axis = mixed_axis(args[0].shape, result.shape) if _is_plain(args[0]) and _is_plain(result) else None
            if axis is not None:
                self._mixed[id(result)] = ref(result), self._note("reshape", name, args[0], result.shape, axis=axis)
            return
        operands = args[:1] if name in _READS_AXES - {*_PRODUCTS, "einsum"} else (args, kwargs)
        given = (self._mixer_of(x) for x in plain_tensors(operands)) if self._mixed else ()
        mixer = next((found for found in given if found is not None), None)
        if mixer is None:
            return
        if name in _READS_AXES:
            self._mixed = {key: kept for key, kept in self._mixed.items() if kept[1] is not mixer}
            self._add(mixer, reader=name)
        elif isinstance(result, Tensor):
            self._mixed[id(result)] = ref(result), mixer

    def _mixer_of(self, x: Any) -> ConfusedAxes | None:
        """Return the reshape that mixed the axes of a tensor, if one did."""
        tensor, mixer = self._mixed.get(id(x), (None, None))
        return mixer if tensor is not None and tensor() is x else None

    def _check_classes(self, name: str, scores: Tensor) -> None:
        """Look where the scores of the first class come from, by the gradient of their sum."""
        num_classes = scores.shape[1]
        if maker_of(scores) in ("softmax", "log_softmax"):
            self._check_weights(name, scores.exp() if maker_of(scores) == "log_softmax" else scores, 1)
            return
        node = last_computation(scores)
        if node is None or num_classes < 2 or scores.numel() > _MAX_ELEMENTS or node is scores.grad_fn:
            return
        picked = torch.zeros_like(scores)
        picked[:, 0] = 1.0
        (made,) = torch.autograd.grad(scores, GradientEdge(node, 0), picked, retain_graph=True)
        of_classes = [axis for axis, size in enumerate(made.shape) if size == num_classes]
        used = [made.movedim(axis, 0).reshape(num_classes, -1).any(1) for axis in of_classes]
        if any(of_classes) and all(int(rows.sum()) > 1 for rows in used):
            self._add(self._note("classes", name, made, scores.shape, axis=of_classes[-1]))

    def _check_weights(self, name: str, weights: Tensor, axis: int) -> None:
        """Look whether weights from a softmax add up to 1 along another axis than the one that is summed over."""
        axis %= weights.dim()
        size = weights.shape[axis]
        is_by_class = name in _SCORES_CLASSES
        if size < 2 or weights.numel() > _MAX_ELEMENTS or (not is_by_class and maker_of(weights) != "softmax"):
            return
        if not is_by_class and weights.shape[-1] != weights.shape[-2]:
            return  # soft assignments of many to a few add up over the few, and are summed over the many
        with torch.no_grad():
            wide = weights.detach().to(widest_float(weights.device))
            others = [other for other in range(weights.dim()) if other != axis and weights.shape[other] > 1]
            right = [other for other in others if _adds_up(wide.sum(other))]
            if right and not _adds_up(wide.sum(axis)):
                self._add(self._note("softmax", "softmax", weights, weights.shape, axis=right[0]), reader=name)

    def _note(self, kind: Any, name: str, given: Tensor, made: Sequence[int], *, axis: int) -> ConfusedAxes:
        site, source = site_here(self._sites), line_here(self._sources)
        return ConfusedAxes(
            kind=kind, function=name, site=site, source=source, given=tuple(given.shape), made=tuple(made), axis=axis
        )

    def _add(self, found: ConfusedAxes, *, reader: str = "") -> None:
        found = replace(found, reader=reader)
        if found not in self.found:
            self.found.append(found)


def mixed_axis(given: Sequence[int], made: Sequence[int]) -> int | None:
    """Return an axis that a reshape seems to keep, because its size occurs once before and after, and does not keep.

    >>> mixed_axis((8, 32, 30, 3), (8, 3, 32, 30)), mixed_axis((8, 32, 30, 3), (8, 960, 3))
    (1, None)
    """
    for axis, size in enumerate(given):
        is_unique = size > 1 and list(given).count(size) == 1 and list(made).count(size) == 1
        if is_unique and math.prod(given[axis + 1 :]) != math.prod(made[list(made).index(size) + 1 :]):
            return axis
    return None


def _contracted_axes(name: str, args: tuple[Any, ...]) -> list[tuple[Tensor, int]]:
    """Return the operands of a product, each with the axis that is summed over."""
    if name == "einsum":
        equation, *operands = args
        if not isinstance(equation, str) or "->" not in equation or "..." in equation:
            return []
        operands = list(plain_tensors(operands))
        sides = equation.replace(" ", "").split("->")
        terms = sides[0].split(",")
        found = [
            (x, [axis for axis, letter in enumerate(term) if letter not in sides[1]])
            for x, term in zip(operands, terms, strict=False)
        ]
        return [(x, summed[0] - x.dim()) for x, summed in found if len(summed) == 1 and x.dim() > 1]
    pair = [x for x in args[:2] if _is_plain(x) and x.dim() > 1]
    return list(zip(pair, (-1, -2), strict=False)) if len(pair) == 2 else []


def _is_plain(x: Any) -> bool:
    return type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided and not x.is_complex()


def _adds_up(sums: Tensor) -> bool:
    return bool(((sums - 1).abs() < 1e-2).all())  # half precision cannot do better


# -- samples in another order ------------------------------------------------------------------------------------------


def _code_along_batch(step: ReplayedStep) -> ConfusedAxes | None:
    """Find what is added to each sample according to its place in the batch, by turning the batch around."""
    size = step.batch_size
    if size is None or are_related(step, size) or learns_inside(step) or step.rounds_on_purpose:
        return None
    plain, turned = model_outputs(step, None), model_outputs(step, lambda x: _turn(x, size))
    pairs = [
        (a, b) for a, b in zip(plain, turned, strict=True) if a.shape == b.shape and a.dim() > 1 and len(a) == size
    ]
    if not any(bool(differ(a.flip(0), b).any()) for a, b in pairs) or _is_random(step, plain):
        return None
    if dependent_samples(step, size // 2, dim=0, size=size) != []:
        return None  # what depends on each other may be places in time
    call = _first_uneven_call(step, size)
    try:
        model_outputs(step, lambda x: cut_batch(x, size, slice(0, max(1, size // 2))))
    except ReplayedCodeRaised:
        return None  # one number for each sample of the whole data set
    return call


def _turn(x: Tensor, size: int) -> Tensor:
    return x.flip(0) if x.dim() and x.shape[0] == size and x.layout is torch.strided else x


def _is_random(step: ReplayedStep, plain: Sequence[Tensor]) -> bool:
    others = model_outputs(step, None, seed=1)
    return any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(plain, others, strict=True))


def _first_uneven_call(step: ReplayedStep, size: int) -> ConfusedAxes | None:
    """Return the call that first combines samples with something that goes by their place in the batch."""
    trails: list[list[CalledFunction]] = []
    for change in (None, lambda x: _turn(x, size)):
        sources = replay_sources()
        trail = FunctionTrail(step.sites, sources)
        with step.in_state(), trail:
            step.play(forward_only=True, is_training=False, change=change, sources=sources)
        trails.append(trail.calls)
    for plain, turned in zip(*trails, strict=False):
        pairs = list(itertools.zip_longest(plain.operands, turned.operands))
        if any(a is None or b is None or a.shape != b.shape for a, b in pairs) or len(pairs) < 2:
            continue
        by_sample = [a for a, b in pairs if _is_by(a, size) and bool(differ(a, b).any())]
        fixed = [a for a, b in pairs if _is_by(a, size) and not bool(differ(a, b).any())]
        codes = [a for a in fixed if bool(differ(a, a.flip(0)).any())]
        if by_sample and codes and by_sample[0].dim() > 2 and codes[0].dim() == by_sample[0].dim():
            return ConfusedAxes(
                kind="positions",
                function=plain.name,
                site=plain.site,
                source=plain.source,
                given=tuple(by_sample[0].shape),
                made=tuple(codes[0].shape),
                axis=0,
            )
    return None


def _is_by(x: Tensor, size: int) -> bool:
    return x.dim() > 0 and x.shape[0] == size
