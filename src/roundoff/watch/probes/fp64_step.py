"""The same step in fp64: is its gradient the derivative of its loss, and what did a narrow format round to zero?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from roundoff.kernels.compiled import has_fp64
from roundoff.replay.replayed_step import ReplayedStep, mean_loss
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape, flatten_entries
from roundoff.runs import DirectionProbe, SlopeOfParameter, WideProbe, ZeroShares
from roundoff.torch_private import forward_class

_STEP_LENGTH = 1e-4
"""Of the finite difference along the gradient, whose own error is the square of this."""
_IS_OFF = 0.02
"""If the derivative is off by more than this, it is measured parameter by parameter."""


def gradient_direction(step: ReplayedStep) -> DirectionProbe | None:
    """Move along the gradient in fp64 and check whether the loss changes as much as the gradient says."""
    if _is_narrow(step.tape) or not _can_be_fp64(step.training):
        return None
    with step.in_state(), _in_fp64(step.training):
        player = step.play(change=_widen, stops_at_step=True)
        known = _custom_functions(player.roots)
        with _noting_identities(known) as identities:
            step.play(change=_widen, forward_only=True)
        functions = tuple(sorted({kind.__name__ for kind in known - identities}))
        parameters = [p for p in step.training.tensors() if p.requires_grad and p.grad is not None]
        gradients = [p.grad.detach().clone() for p in parameters if p.grad is not None]
        norm = math.sqrt(math.fsum(float(g.abs().square().sum()) for g in gradients))
        if not norm or not math.isfinite(norm):
            return None
        measured = _slope(step, parameters, [g / norm for g in gradients])
        ratio = measured / norm
        by_site: tuple[SlopeOfParameter, ...] = ()
        if functions or abs(ratio - 1) > _IS_OFF:  # a small wrong part may hide behind a large correct one
            by_site = tuple(_slope_of(step, p, g) for p, g in zip(parameters, gradients, strict=True))
        return DirectionProbe(
            step=step.tape.step, expected=norm, measured=measured, ratio=ratio, functions=functions, by_site=by_site
        )


def _slope_of(step: ReplayedStep, parameter: Tensor, gradient: Tensor) -> SlopeOfParameter:
    norm = float(gradient.norm())
    site, name = step.sites.of_parameter(parameter)
    ratio, further = (
        _slope(step, [parameter], [gradient / norm], length=length) / norm if norm else None
        for length in (_STEP_LENGTH, 3 * _STEP_LENGTH)
    )
    return SlopeOfParameter(site=step.sites.names[site], parameter=name, ratio=ratio, ratio_further=further)


def _slope(
    step: ReplayedStep, parameters: Sequence[Tensor], directions: Sequence[Tensor], *, length: float = _STEP_LENGTH
) -> float:
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=sign * length)
        losses.append(mean_loss(step.play(change=_widen, forward_only=True)) or 0.0)
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.sub_(d, alpha=sign * length)
    return (losses[0] - losses[1]) / (2 * length)


def fp64_step(step: ReplayedStep) -> WideProbe | None:
    """Compute the gradients of a narrow step in fp64 as well, and count the zeros that only the format made."""
    if not _is_narrow(step.tape) and all(x.dtype in (torch.float32, torch.float64) or not x.is_floating_point()
                                          for x in step.training.tensors()):  # fmt: skip
        return None
    if not _can_be_fp64(step.training):
        return None
    with step.in_state():
        narrow_loss = mean_loss(step.play(stops_at_step=True))
        narrow = _zero_shares(step)
    with step.in_state(), _in_fp64(step.training):
        wide_loss = mean_loss(step.play(change=_widen, stops_at_step=True, autocasts=False))
        wide = _zero_shares(step)
    shares = tuple(
        ZeroShares(name=name, zero_share=share, subnormal_share=subnormal, wide_zero_share=wide[name][0])
        for name, (share, subnormal) in narrow.items()
        if name in wide
    )
    return WideProbe(step=step.tape.step, loss=narrow_loss, wide_loss=wide_loss, parameters=shares)


def _zero_shares(step: ReplayedStep) -> dict[str, tuple[float, float]]:
    shares: dict[str, tuple[float, float]] = {}
    for p in step.training.tensors():
        name = step.sites.of_parameter(p)[1]
        if p.grad is not None and name is not None and p.numel():
            tiny = torch.finfo(p.grad.dtype).tiny
            zeros = float((p.grad == 0).sum()) / p.numel()
            shares[name] = (zeros, float((p.grad.abs() < tiny).sum()) / p.numel() - zeros)
    return shares


@contextlib.contextmanager
def _in_fp64(training: Training) -> Iterator[None]:
    """Hold every parameter and buffer in fp64 inside the block."""
    floats = [(x, x.dtype) for x in training.tensors() if x.is_floating_point() or x.is_complex()]
    try:
        for x, _ in floats:
            x.data = _widen(x.data)
            x.grad = None
        yield
    finally:
        for x, dtype in floats:
            x.grad = None
            x.data = x.data.to(dtype)


def _can_be_fp64(training: Training) -> bool:
    return all(has_fp64(device) for device in {x.device for x in training.tensors()})


def _widen(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def _is_narrow(tape: StepTape) -> bool:
    return any(getattr(getattr(entry, "ambient", None), "autocast", ()) for entry in flatten_entries(tape.entries))


def _is_torchs(node: Any) -> bool:
    """Say whether an autograd function is torch's own, such as the one that calls backward hooks of modules."""
    return bool(forward_class(node).__module__.partition(".")[0] == "torch")


def _custom_functions(roots: Sequence[Tensor]) -> set[Any]:
    """Return the user's own autograd functions that a backward from `roots` runs."""
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    found: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction) and not _is_torchs(node):
            found.add(forward_class(node))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


@contextlib.contextmanager
def _noting_identities(functions: set[Any]) -> Iterator[set[Any]]:
    """Yield a set that holds, after the block, the functions that only returned their input.

    They exist for their backward alone: gradients are reversed, scaled or clipped on purpose.
    """
    others: set[Any] = set()
    called: set[Any] = set()
    identities: set[Any] = set()
    originals = {kind: kind.__dict__["forward"] for kind in functions if "forward" in kind.__dict__}

    def noting(kind: Any, forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            given = [x for x in args if isinstance(x, Tensor)]
            is_same = isinstance(result, Tensor) and any(
                x.shape == result.shape and torch.equal(x, result) for x in given
            )
            (called if is_same else others).add(kind)
            return result

        return staticmethod(run)

    try:
        for kind in originals:
            kind.forward = noting(kind, kind.forward)
        yield identities
    finally:
        for kind, original in originals.items():
            kind.forward = original
        identities |= called - others
