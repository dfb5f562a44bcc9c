"""What the loop computes from the outputs of trained models: thresholds, choices, and what they are compared with."""

from __future__ import annotations

import contextlib
import numbers
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.record.source_lines import shown_path
from roundoff.replay.arguments import tensors_of
from roundoff.replay.tape_recorder import is_loss_name
from roundoff.runs import EvalMatchProbe, MetricProbe, Probe
from roundoff.watch.facts.eval_trial import EvalTrial

_MAX_FUNCTIONS, _PART_OF_OTHERS = 4000, 0.02
_MAX_CALLS, _MAX_TRAINING_CALLS = 400, 64
_MAX_TRACKED = 2048
_MAX_ELEMENTS = 2**20
_MAX_CLASSES = 100
_MAX_LINES, _MAX_CHAIN = 32, 16
_MIN_CHOSEN, _MIN_CHOSEN_SHARE, _MOST = 5, 0.03, 0.6

_KEEPS_VALUES = frozenset({
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "cpu", "to", "detach", "clone",
    "contiguous", "float", "double", "long", "int", "bool", "type", "type_as", "view_as", "cat", "concat", "stack",
    "__get__", "__getitem__", "expand", "movedim", "bfloat16", "half", "item", "numpy", "tolist",
})  # fmt: skip
_REORDERS = frozenset({"__getitem__", "flip", "sort", "argsort", "index_select", "gather", "masked_select", "roll"})
_THRESHOLDS = frozenset(f"{a}{b}{c}" for b in ("gt", "ge", "lt", "le") for a, c in (("", ""), ("__", "__"))) | {
    "greater", "greater_equal", "less", "less_equal",
}  # fmt: skip
_MATCHES = frozenset({"eq", "__eq__", "ne", "__ne__", "not_equal"})
_DIFFERENCES = frozenset({"sub", "__sub__", "__rsub__", "rsub", "subtract"})
_CHOICES = frozenset({"argmax", "max", "topk"})
_SIZES = frozenset({"numel", "nelement", "size", "__len__"})


@dataclass(slots=True, kw_only=True)
class _Line:
    """What one line of the loop does with outputs; becomes a probe at the end."""

    probe: MetricProbe
    target: ref[Tensor] | None = None
    is_averaged: bool = False
    is_summed: bool = False
    is_measured: bool = False
    """Whether the loop has asked how many targets there are."""
    is_masked: bool = False


@dataclass(slots=True, kw_only=True)
class _Call:
    """One call of a trained model."""

    without_gradients: bool
    in_training: bool
    own: Tensor | None
    """The class indices that came in one batch with its input."""
    model: ref[nn.Module]
    given: ref[Tensor] | None
    """Its only input, if that is a batch of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ValueTrail:
    """How a tensor was computed from outputs."""

    calls: tuple[_Call, ...]
    functions: tuple[str, ...] = ()
    in_order: bool = True
    line: _Line | None = None
    """The line that made it, if it is made of matches."""


@dataclass(slots=True)
class _Matches:
    """Choices and class indices of one evaluation, at one line."""

    step: int
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    own_right: int = 0
    num_own: int = 0
    num_others: int = 0


class EvaluationTrail:
    """Follows outputs of models through the functions that the loop itself calls, for a limited number of calls."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether functions are to be reported."""
        self._trails: dict[int, tuple[ref[Tensor], _ValueTrail]] = {}
        self._lines: dict[tuple[str, str | None], _Line] = {}
        self._matches: dict[str | None, _Matches] = {}
        self._batches: dict[int, tuple[ref[Tensor], list[ref[Tensor]]]] = {}
        self.trial = EvalTrial()
        """What the last evaluation was made of."""
        self._num_functions = 0.0
        self._num_calls = self._num_training_calls = 0

    def see_batches(self, iterator: Any) -> None:
        """Look at the batches that an iterator of a DataLoader is going to give."""
        take, itself = getattr(type(iterator), "_next_data", None), ref(iterator)  # it is freed as without us
        if take is None or not self.wants_calls:
            return

        def take_and_see() -> Any:
            batch = take(itself())
            with contextlib.suppress(Exception):  # the loop gets its batch in any case
                self._see_batch(batch)
            return batch

        iterator._next_data = take_and_see

    def _see_batch(self, batch: Any) -> None:
        """Remember what came together out of a DataLoader."""
        found = [x for x in tensors_of(batch) if type(x) is Tensor and x.dim()]
        self._batches = {id(x): (ref(x), [ref(y) for y in found if y is not x]) for x in found}

    @property
    def wants_calls(self) -> bool:
        """Whether another call of a model is followed."""
        return self._num_calls < _MAX_CALLS and self._num_functions < _MAX_FUNCTIONS

    @property
    def wants_training_calls(self) -> bool:
        """Whether another call in training mode is followed, which is rarely a part of an evaluation."""
        return self._num_training_calls < _MAX_TRAINING_CALLS and self.wants_calls

    def model_returned(self, module: nn.Module, given: tuple[Any, Any], output: Any, *, in_training: bool) -> None:
        """Follow what a trained model has returned to the loop."""
        self.is_on = self.wants_calls
        if not self.is_on:
            return
        self._num_calls += 1
        self._num_training_calls += in_training and not torch.is_grad_enabled()
        if len(self._trails) > _MAX_TRACKED:
            self._trails = {key: kept for key, kept in self._trails.items() if kept[0]() is not None}
        outputs = [x for x in tensors_of(output) if type(x) is Tensor]
        inputs = list(tensors_of(given))
        only = ref(inputs[0]) if len(inputs) == 1 and inputs[0].is_floating_point() and inputs[0].is_cpu else None
        without = not torch.is_grad_enabled()
        call = _Call(
            without_gradients=without, in_training=in_training, own=self._own(given), model=ref(module), given=only
        )
        for x in outputs:
            self._follow(x, _ValueTrail(calls=(call,)))

    def _own(self, given: Any) -> Tensor | None:
        """Return the class indices of the batch whose input a model was given."""
        for x in tensors_of(given):
            known, others = self._batches.get(id(x), (None, []))
            if known is not None and known() is x:
                for other in others:
                    y = other()
                    if y is not None and not y.is_floating_point() and y.dim() == 1 and len(y) == len(x):
                        return y.detach().clone()
        return None

    def _follow(self, x: Tensor, trail: _ValueTrail) -> None:
        if len(self._trails) < 2 * _MAX_TRACKED:
            self._trails[id(x)] = (ref(x), trail)

    def _trail_of(self, x: Any) -> _ValueTrail | None:
        known = self._trails.get(id(x))
        return known[1] if known is not None and known[0]() is x else None

    def see(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, step: int, line: Any
    ) -> None:
        """Look at a function that the loop has called."""
        trails = [trail for x in _tensors_in(args, kwargs) if (trail := self._trail_of(x)) is not None]
        self._num_functions += 1 if trails else _PART_OF_OTHERS  # data sets call many
        self.is_on = self._num_functions < _MAX_FUNCTIONS
        if not trails:
            self._see_other(name, args, result)
            return
        made = [x for x in tensors_of(result) if type(x) is Tensor]
        trail = _join_trails(trails, name)
        found = None
        if all(call.without_gradients == trail.calls[0].without_gradients for call in trail.calls):
            source = None if line is None else f"{shown_path(line[0])}:{line[1]}"
            found = self._look(name, args, kwargs, made, trail, step=step, source=source)
        self._see_matches(name, args, trails)
        kept = found if found is not None and name in _MATCHES else _line_of(trails, name, args)
        for x in made:
            self._follow(x, replace(trail, line=kept))

    def _see_other(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Notice masks of the targets, and who asks for their number."""
        if name in _SIZES and isinstance(first := args[0], Tensor):
            for line in self._lines.values():
                if line.target is not None and line.target() is first and (name != "__len__" or first.dim() == 1):
                    line.is_measured = True
        elif isinstance(result, Tensor) and result.dtype is torch.bool and not torch.is_grad_enabled():
            for line in self._lines.values():
                line.is_masked |= tuple(result.shape) == line.probe.other_shape

    def _see_matches(self, name: str, args: tuple[Any, ...], trails: list[_ValueTrail]) -> None:
        for trail in trails:
            if trail.line is None:
                continue
            trail.line.is_averaged |= name == "mean"
            trail.line.is_summed |= name in ("sum", "count_nonzero")
            has_other = any(isinstance(x, Tensor) and self._trail_of(x) is None for x in _tensors_in(args, {}))
            trail.line.is_masked |= has_other and name not in ("cat", "stack", "div", "__truediv__", "true_divide")

    def _look(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        made: list[Tensor],
        trail: _ValueTrail,
        *,
        step: int,
        source: str | None,
    ) -> _Line | None:
        x = args[0] if args and isinstance(args[0], Tensor) else None
        if x is None:
            return None
        other = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("target"))
        before = trail.functions[:-1] if trail.functions[-1:] == (name,) else trail.functions
        if name == "round" and x.is_floating_point():
            name, other = "ge", 0.5
        if name in _THRESHOLDS and isinstance(other, numbers.Real) and x.is_floating_point():
            values: dict[str, Any] = {"threshold": float(other), "share": _share(made), **_range(x)}
            return self._note("threshold", trail, source, step, x, functions=before, **values)
        if name in _CHOICES:
            axis = kwargs.get("dim", kwargs.get("axis", other))
            if isinstance(axis, int) and not isinstance(axis, bool) and x.dim() and name != "topk":
                return self._note("choice", trail, source, step, x, functions=before, axis=axis % x.dim())
        if not isinstance(other, Tensor) or other.dim() == 0:
            return None
        own, theirs = (x, other) if self._trail_of(x) is not None else (other, x)
        if self._trail_of(theirs) is not None or theirs.requires_grad:
            return None  # two models are compared, a teacher and its student
        if name in _MATCHES:
            found: dict[str, Any] = {"share": _share(made), "counts": _counts(theirs)}
            line = self._note("match", trail, source, step, own, theirs, functions=before, **found)
            if line is not None:
                line.target = ref(theirs)
            self._compare(own, theirs, trail, source, step)
            return line
        if name in _DIFFERENCES or is_loss_name(name):
            kind: Literal["loss", "error"] = "loss" if is_loss_name(name) else "error"
            return self._note(kind, trail, source, step, own, theirs, functions=before, **_range(theirs))
        return None

    def _note(
        self,
        kind: Literal["threshold", "choice", "match", "error", "loss"],
        trail: _ValueTrail,
        source: str | None,
        step: int,
        x: Tensor,
        other: Tensor | None = None,
        **values: Any,
    ) -> _Line | None:
        line = self._lines.get((kind, source))
        asked = [call for call in trail.calls if call.without_gradients]
        if line is None:
            if len(self._lines) >= _MAX_LINES:
                return None
            other_shape = () if other is None else tuple(other.shape)
            probe = MetricProbe(
                step=step, kind=kind, source=source, shape=tuple(x.shape), other_shape=other_shape, **values
            )
            line = self._lines[kind, source] = _Line(probe=probe)
        line.probe = replace(
            line.probe,
            num_calls=line.probe.num_calls + len(asked),
            num_training=line.probe.num_training + sum(call.in_training for call in asked),
            other_shape=() if other is None else tuple(other.shape),
            shape=tuple(x.shape),
        )
        return line

    def _compare(self, chosen: Tensor, target: Tensor, trail: _ValueTrail, source: str | None, step: int) -> None:
        """Count the choices of an evaluation by the class indices that they meet."""
        is_plain = chosen.shape == target.shape and 0 < chosen.numel() <= _MAX_ELEMENTS and chosen.is_cpu
        if not is_plain or not trail.calls[0].without_gradients or not _is_whole(chosen) or not _is_whole(target):
            return
        found = self._matches.get(source)
        if found is None or found.step != step:
            found = self._matches[source] = _Matches(step)
        pairs = torch.stack([chosen.detach().flatten().long(), target.detach().flatten().long()], 1)
        values, counts = pairs.unique(dim=0, return_counts=True)
        if len(values) > _MAX_CLASSES**2:
            return
        for (a, b), count in zip(values.tolist(), counts.tolist(), strict=True):
            found.counts[a, b] += count
        self._keep_pair(trail, target, step)
        owns = [call.own for call in trail.calls]
        if trail.in_order and all(own is not None for own in owns):
            own = torch.cat([own for own in owns if own is not None])
            same = own.shape == target.shape and bool(
                (own.sort().values == target.flatten().long().sort().values).all()
            )
            if same:
                found.own_right += int((own == pairs[:, 0]).sum())
                found.num_own += len(own)
                found.num_others += int((own != pairs[:, 1]).sum())

    def _keep_pair(self, trail: _ValueTrail, target: Tensor, step: int) -> None:
        """Keep the input and the targets of one call, to be tried in other ways at the end."""
        call = trail.calls[0]
        x, model = None if call.given is None else call.given(), call.model()
        if len(trail.calls) == 1 and x is not None and model is not None and target.shape == x.shape[:1]:
            self.trial.add(model, x, target, step)

    def probes(self) -> Iterator[Probe]:
        """Yield what was seen."""
        for line in self._lines.values():
            counts_all = (line.is_averaged or (line.is_summed and line.is_measured)) and not line.is_masked
            yield replace(line.probe, counts_all=counts_all)
        for source, matches in self._matches.items():
            yield _match_probe(source, matches)


def _match_probe(source: str | None, matches: _Matches) -> EvalMatchProbe:
    names: dict[str, int] = {}
    used: set[int] = set()
    for (a, b), _ in matches.counts.most_common():
        if str(a) not in names and b not in used and b >= 0:
            names[str(a)] = b
            used.add(b)
    total = matches.counts.total()
    are_others = matches.num_own == total and matches.num_others > 0
    return EvalMatchProbe(
        step=matches.step,
        source=source,
        num_samples=total,
        share=sum(count for (a, b), count in matches.counts.items() if a == b) / total,
        renamed_share=sum(count for (a, b), count in matches.counts.items() if names.get(str(a)) == b) / total,
        names=names,
        num_moved=sum(_is_moved(matches.counts, int(a), b) for a, b in names.items()),
        own_share=matches.own_right / total if are_others else None,
    )


def _is_moved(counts: Counter[tuple[int, int]], chosen: int, target: int) -> bool:
    """Say whether most choices of a class that is chosen often meet one other class."""
    num = sum(count for (a, _), count in counts.items() if a == chosen)
    is_often = num >= max(_MIN_CHOSEN, _MIN_CHOSEN_SHARE * counts.total())
    return chosen != target and is_often and counts[chosen, target] >= _MOST * num


def _join_trails(trails: list[_ValueTrail], name: str) -> _ValueTrail:
    functions = max((trail.functions for trail in trails), key=len)
    calls = tuple({id(call): call for trail in trails for call in trail.calls}.values())  # samplers go in circles
    return _ValueTrail(
        calls=calls[:_MAX_CALLS],
        functions=functions if name in _KEEPS_VALUES else (*functions[:_MAX_CHAIN], name),
        in_order=all(trail.in_order for trail in trails) and name not in _REORDERS and len(calls) <= _MAX_CALLS,
    )


def _line_of(trails: list[_ValueTrail], name: str, args: tuple[Any, ...]) -> _Line | None:
    """Return the line whose matches a function only moves or converts."""
    return trails[0].line if name in _KEEPS_VALUES and len(trails) == 1 else None


def _tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, Tensor))


def _share(made: list[Tensor]) -> float | None:
    x = made[0] if made else None
    return float(x.double().mean()) if x is not None and _can_be_read(x) else None


def _can_be_read(x: Tensor) -> bool:
    """Return whether the values of a tensor can be looked at: reading those of a device would wait for it."""
    return 0 < x.numel() <= _MAX_ELEMENTS and x.is_cpu and not x.is_complex() and not x.is_nested


def _range(x: Tensor) -> dict[str, float]:
    if not _can_be_read(x):
        return {}
    low, high = (float(bound) for bound in x.detach().aminmax())
    return {"min": low, "max": high} if low - low == 0 == high - high else {}


def _is_whole(x: Tensor) -> bool:
    return not x.is_complex() and (not x.is_floating_point() or bool((x == x.round()).all()))


def _counts(x: Tensor) -> dict[str, int]:
    if x.is_floating_point() or not _can_be_read(x):
        return {}
    values, counts = x.unique(return_counts=True)
    if len(values) > _MAX_CLASSES:
        return {}
    return {str(int(value)): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
