"""Experiments on a snapshot whose results are written into the run: the step again, with one thing changed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from roundoff.record.sites import LOOP, Sites
from roundoff.record.source import Sources
from roundoff.record.torch_private import seen_by_functions
from roundoff.runs import JsonValue, RunWriter
from roundoff.watch import replay as replaying
from roundoff.watch.arguments import Outside, tensors_of
from roundoff.watch.batch_facts import is_loss
from roundoff.watch.random_ops import noting_random_ops
from roundoff.watch.replay import Player, quietly, state_before
from roundoff.watch.snapshots import Snapshot
from roundoff.watch.state import Training
from roundoff.watch.tape import ModelCall, StepTape, flat

_OVERFIT_STEPS = 40
_STEP_LENGTH = 1e-4
"""Of the walk along the gradient, in fp64: its own error is the square of it."""
_IS_OFF = 0.02
"""A derivative that is off by more than this is measured parameter by parameter."""

Probe = Callable[["Bench"], dict[str, JsonValue] | None]


class Bench:
    """One step, ready to be played again in the state it started from."""

    def __init__(self, training: Training, snapshot: Snapshot, tapes: Sequence[StepTape], sites: Sites) -> None:
        self.training = training
        self.sites = sites
        self.tape = tapes[-1]
        self._state = snapshot.state if len(tapes) == 1 else state_before(training, snapshot, tapes)

    @property
    def batch_size(self) -> int | None:
        """The first dimension of what the first model was given."""
        for entry in flat(self.tape.entries):
            if isinstance(entry, ModelCall):
                sizes = [x.copy.shape[0] for x in _outside_in((entry.args, entry.kwargs)) if x.copy.dim()]
                return sizes[0] if sizes and sizes[0] > 1 else None
        return None

    @contextlib.contextmanager
    def in_state(self) -> Iterator[None]:
        """Have the training in the state before the step, inside the block."""
        with self._state.lent(self.training), quietly(), seen_by_functions():
            yield

    def play(self, **changes: Any) -> Player:
        """Play the step once, in the state that `in_state` made."""
        player = Player(**changes)
        player.play(self.tape.entries)
        return player


class Probes:
    """Runs the probes on one step, within an allowance of time, and writes down what they give."""

    def __init__(self, writer: RunWriter, *, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds

    def run(self, bench: Bench, *, is_suspicious: bool) -> None:
        """Run one probe after another as long as time allows; one that fails is left out.

        Args:
            bench: the step.
            is_suspicious: the loss did not go down: also see whether one batch can be learned.
        """
        began = time.monotonic()
        probes: list[Probe] = [_eval_mode, _half_batch, _batch_mixing, _direction, _wide]
        if is_suspicious:
            probes.insert(2, lambda bench: _overfit(bench, until=began + self._seconds))
        for probe in probes:
            if time.monotonic() - began > self._seconds:
                self._writer.note(f"Probes were cut short after {self._seconds:g} s.")
                return
            try:
                found = probe(bench)
            except Exception:  # code of the user that takes only what it is used to
                continue
            if found is not None:
                self._writer.write_probe({"step": bench.tape.step, **found})


def _loss(player: Player) -> float | None:
    values = [float(loss) for loss in player.losses]
    return math.fsum(values) / len(values) if values else None


def _half_batch(bench: Bench) -> dict[str, JsonValue] | None:
    """Play the step in eval mode with each half of the batch: the mean of a mean stays, a sum halves."""
    size = bench.batch_size
    if size is None or size < 4:
        return None
    halves: list[JsonValue] = []
    for part in (slice(0, size // 2), slice(size // 2, size)):
        with bench.in_state():
            player = bench.play(forward_only=True, is_training=False, change=lambda x, part=part: _cut(x, size, part))
            halves.append(_loss(player))
    with bench.in_state():
        whole = _loss(bench.play(forward_only=True, is_training=False))
    return {"probe": "half-batch", "loss": whole, "halves": halves}


def _cut(x: Tensor, size: int, part: slice) -> Tensor:
    return x[part] if x.dim() and x.shape[0] == size else x


def _eval_mode(bench: Bench) -> dict[str, JsonValue] | None:
    """Play the same batch in train mode and, twice, in eval mode."""
    with bench.in_state():
        train = _loss(bench.play(forward_only=True))
    sources = Sources(stands_in_for=replaying.__file__)
    with bench.in_state(), noting_random_ops(bench.sites, sources) as random_ops:
        once = _loss(bench.play(forward_only=True, is_training=False, sources=sources))
        drawn: list[JsonValue] = [*random_ops]  # taken here: a list that grows inside is set back with everything else
    with bench.in_state():
        torch.manual_seed(1)
        again = _loss(bench.play(forward_only=True, is_training=False, keeps_generators=False))
    return {
        "probe": "eval-mode",
        "train_loss": train,
        "eval_loss": once,
        "eval_again": again,
        "random_ops": drawn,
    }


def _overfit(bench: Bench, *, until: float) -> dict[str, JsonValue] | None:
    """Take the step again and again with the same batch: whatever can learn learns that."""
    losses: list[JsonValue] = []
    with bench.in_state():
        while len(losses) < _OVERFIT_STEPS and time.monotonic() < until:
            losses.append(_loss(bench.play()))
    return {"probe": "overfit", "losses": losses} if len(losses) > 1 else None


def _batch_mixing(bench: Bench) -> dict[str, JsonValue] | None:
    """Change one sample, in eval mode, and see whether the outputs of others change."""
    size = bench.batch_size
    if size is None:
        return None
    sample = size // 2
    dependent = _dependent(bench, sample, dim=0, size=size)
    if not dependent:
        return {"probe": "batch-mixing", "sample": sample, "changed": [], "site": None}
    widths = {x.copy.shape[1] for e in flat(bench.tape.entries) if isinstance(e, ModelCall)
              for x in _outside_in((e.args, e.kwargs)) if x.copy.dim() > 1 and x.copy.shape[0] == size}  # fmt: skip
    if len(widths) == 1 and (width := widths.pop()) > 1 and _dependent(bench, width // 2, dim=1, size=width) == []:
        return None  # time comes first here and samples second
    changed: list[JsonValue] = [*dependent]
    return {
        "probe": "batch-mixing",
        "sample": sample,
        "changed": changed,
        "site": _first_mixing_site(bench, sample, size),
    }


def _dependent(bench: Bench, sample: int, *, dim: int, size: int) -> list[int] | None:
    """Return the samples other than `sample` whose outputs change with it; None if the outputs are not by sample."""
    plain = _outputs(bench, None)
    other = _outputs(bench, lambda x: _disturbed(x, sample, dim, size))
    found: set[int] = set()
    is_by_sample = False
    for a, b in zip(plain, other, strict=True):
        if a.shape != b.shape or a.dim() <= dim or a.shape[dim] != size:
            continue
        is_by_sample = True
        scale = float(a.abs().max()) or 1.0
        differs = ((a - b).abs() > 1e-5 * scale).transpose(0, dim).reshape(size, -1).any(1)
        found |= {int(place) for place in differs.nonzero().flatten()} - {sample}
    return sorted(found) if is_by_sample else None


def _outputs(bench: Bench, change: Callable[[Tensor], Tensor] | None) -> list[Tensor]:
    with bench.in_state():
        player = bench.play(forward_only=True, is_training=False, change=change)
    calls = [entry for entry in flat(bench.tape.entries) if isinstance(entry, ModelCall)]
    pairs = zip(calls, player.outputs, strict=False)
    outputs = [x for call, output in pairs if not is_loss(call) for x in tensors_of(output)]
    return [x.detach().double() for x in outputs if x.is_floating_point()]


def _disturbed(x: Tensor, sample: int, dim: int, size: int) -> Tensor:
    if x.dim() <= dim or x.shape[dim] != size:
        return x
    x = x.clone()
    chosen = x.select(dim, sample)
    if x.is_floating_point():
        chosen += chosen.std().nan_to_num().clamp(min=1e-2) * torch.linspace(0.5, 1.5, chosen.numel()).view_as(chosen)
    elif x.dtype is not torch.bool and x.dim() > 1:
        chosen.copy_(x.select(dim, (sample + 1) % size))
    return x


def _first_mixing_site(bench: Bench, sample: int, size: int) -> str | None:
    """Return the module in whose own code the values of other samples begin to change with `sample`."""
    plain = _Trail(size)
    with plain.following():
        _outputs(bench, None)
    other = _Trail(size)
    with other.following():
        _outputs(bench, lambda x: _disturbed(x, sample, 0, size))
    others = [place for place in range(size) if place != sample]
    for (module, a), (_, b) in zip(plain.stops, other.stops, strict=False):
        if a.shape == b.shape and bool(((a - b).abs()[others] > 1e-5 * (float(a.abs().max()) or 1.0)).any()):
            return LOOP if module is None else bench.sites.names[bench.sites.of_module(module, 0)]
    return None


class _Trail:
    """Follows values through the modules of a forward: each stop is a tensor, and whose code has computed it."""

    def __init__(self, size: int) -> None:
        self.stops: list[tuple[nn.Module | None, Tensor]] = []
        self._size = size
        self._running: list[nn.Module] = []

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stop(self._running[-1] if self._running else None, args)
        self._running.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()
        self._stop(module, output)

    def _stop(self, module: nn.Module | None, values: Any) -> None:
        for x in tensors_of(values):
            if x.is_floating_point() and x.dim() and x.shape[0] == self._size:
                self.stops.append((module, x.detach().double()))


def _direction(bench: Bench) -> dict[str, JsonValue] | None:
    """Walk along the gradient in fp64 and see whether the loss changes as much as the gradient says."""
    if _is_narrow(bench.tape):
        return None
    with bench.in_state(), _in_fp64(bench.training):
        player = bench.play(change=_widened, stops_at_step=True)
        functions = sorted(_custom_functions(player.roots))
        parameters = [p for p in bench.training.tensors() if p.requires_grad and p.grad is not None]
        gradients = [p.grad.detach().clone() for p in parameters if p.grad is not None]
        norm = math.sqrt(math.fsum(float(g.square().sum()) for g in gradients))
        if not norm or not math.isfinite(norm):
            return None
        measured = _slope(bench, parameters, [g / norm for g in gradients])
        ratio = measured / norm
        found: dict[str, JsonValue] = {
            "probe": "direction", "expected": norm, "measured": measured, "ratio": ratio, "functions": list(functions),
        }  # fmt: skip
        if abs(ratio - 1) > _IS_OFF:
            found["by_site"] = [_slope_of(bench, p, g) for p, g in zip(parameters, gradients, strict=True)]
        return found


def _slope_of(bench: Bench, parameter: Tensor, gradient: Tensor) -> dict[str, JsonValue]:
    norm = float(gradient.norm())
    site, name = bench.sites.of_parameter(parameter)
    ratio = _slope(bench, [parameter], [gradient / norm]) / norm if norm else None
    return {"site": bench.sites.names[site], "parameter": name, "ratio": ratio}


def _slope(bench: Bench, parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> float:
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=sign * _STEP_LENGTH)
        losses.append(_loss(bench.play(change=_widened, forward_only=True)) or 0.0)
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.sub_(d, alpha=sign * _STEP_LENGTH)
    return (losses[0] - losses[1]) / (2 * _STEP_LENGTH)


def _wide(bench: Bench) -> dict[str, JsonValue] | None:
    """Compute the gradients of a narrow step wide, and count the zeros that only the format made."""
    if not _is_narrow(bench.tape) and all(x.dtype in (torch.float32, torch.float64) or not x.is_floating_point()
                                          for x in bench.training.tensors()):  # fmt: skip
        return None
    with bench.in_state():
        narrow_loss = _loss(bench.play(stops_at_step=True))
        narrow = _zero_shares(bench)
    with bench.in_state(), _in_fp64(bench.training):
        wide_loss = _loss(bench.play(change=_widened, stops_at_step=True, autocasts=False))
        wide = _zero_shares(bench)
    return {
        "probe": "wide",
        "loss": narrow_loss,
        "wide_loss": wide_loss,
        "parameters": [
            {"name": name, "zero_share": share, "subnormal_share": subnormal, "wide_zero_share": wide[name][0]}
            for name, (share, subnormal) in narrow.items()
            if name in wide
        ],
    }


def _zero_shares(bench: Bench) -> dict[str, tuple[float, float]]:
    shares: dict[str, tuple[float, float]] = {}
    for p in bench.training.tensors():
        name = bench.sites.of_parameter(p)[1]
        if p.grad is not None and name is not None and p.numel():
            tiny = torch.finfo(p.grad.dtype).tiny
            zeros = float((p.grad == 0).double().mean())
            shares[name] = (zeros, float((p.grad.abs() < tiny).double().mean()) - zeros)
    return shares


@contextlib.contextmanager
def _in_fp64(training: Training) -> Iterator[None]:
    """Have every parameter and buffer in fp64; the state that was lent is given back afterwards in any case."""
    floats = [(x, x.dtype) for x in training.tensors() if x.is_floating_point()]
    try:
        for x, _ in floats:
            x.data = x.data.double()
            x.grad = None
        yield
    finally:
        for x, dtype in floats:
            x.grad = None
            x.data = x.data.to(dtype)


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _is_narrow(tape: StepTape) -> bool:
    return any(getattr(getattr(entry, "ambient", None), "autocast", ()) for entry in flat(tape.entries))


def _custom_functions(roots: Sequence[Tensor]) -> set[str]:
    """Return the names of the user's own autograd functions that a backward from `roots` runs."""
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.add(type(node).__name__.removesuffix("Backward"))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _outside_in(value: Any) -> Iterator[Outside]:
    if isinstance(value, Outside):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _outside_in(item)
    elif isinstance(value, dict):
        yield from _outside_in(list(value.values()))
