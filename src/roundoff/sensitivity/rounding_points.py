"""A mode that finds where a recipe would round, without rounding anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from roundoff import torch_private
from roundoff.formats import Format
from roundoff.precision.compute.computation import OpenCalls
from roundoff.precision.compute.emulated_ops import CASTS, WHOLE, RoundingScope, RoundResults
from roundoff.precision.compute.torch_ops import Function, op_name, open_composite
from roundoff.record.loop.sites import LOOP
from roundoff.sensitivity.error_sums import EffectKey, OpGroups
from roundoff.sensitivity.narrow_calls import NarrowCall, PendingCalls, Stage, floats_in, fp32_tensors_in, memory_of
from roundoff.sensitivity.narrow_shadow_run import NarrowShadowRun
from roundoff.sensitivity.single_site_effects import KeptForward

_PLAIN_TYPES = (Tensor, nn.Parameter)
_WRITING_OPERATORS = frozenset(
    f"__{name}__" for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul", "setitem")
)
"""Operators that write into their first operand."""


class RunningCall:
    """A running call: its arguments, and what the mode that rounds would do to it."""

    def __init__(self, site: str, op: str, arguments: list[Tensor], *, writes: bool) -> None:
        self.site = site
        self.op = op
        self.arguments = arguments
        self.written = arguments[0] if writes and arguments else None
        self.is_product = False
        self.rounded: list[Tensor] = []
        self.wide: list[Tensor] = []
        self._versions = [x._version for x in arguments]

    def passes_through(self, result: Tensor) -> bool:
        """Whether a result is one of the arguments, unchanged."""
        pairs = zip(self.arguments, self._versions, strict=True)
        return any(x is result and x._version == version for x, version in pairs)

    def views(self, result: Tensor) -> bool:
        """Whether a result is a view of an argument."""
        memory = memory_of(result)
        return result is not self.written and any(memory_of(x) == memory for x in self.arguments)

    def rounds(self, result: Tensor) -> bool:
        """Whether a result is new and would be rounded."""
        return is_one_of(result, self.rounded) and not self.views(result)


def writes(func: Function, kwargs: dict[str, Any]) -> bool:
    """Whether a function writes into its first argument."""
    name = getattr(func, "__name__", "")
    if name in ("requires_grad_", "share_memory_"):
        return False
    return bool(kwargs.get("inplace")) or name in _WRITING_OPERATORS or (name.endswith("_") and not name.endswith("__"))


def plain_tensors(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """Return the plain tensors whose memory can be read."""
    return (x for x in tensors if type(x) in _PLAIN_TYPES and not torch_private.has_no_memory(x))


def is_one_of(x: Tensor, tensors: Iterable[Tensor]) -> bool:
    """Whether a tensor is one of these, by identity: `in` would compare their elements."""
    return any(x is each for each in tensors)


_VIEWS = frozenset({"T", "mT", "H", "mH"})
"""Attributes that return tensors of the step."""
_OUTSIDE: OpGroups = frozenset({frozenset()})
"""What comes from outside the model was rounded by no op."""


class _TensorTag(NamedTuple):
    """What is known about a tensor of the step."""

    rounded_by: OpGroups
    wide_at: str | None = None
    """The site whose code keeps it in fp32 on purpose."""


class RoundingPoints(RoundResults):
    """Finds every call that would be rounded if each site took a narrow format: operands, weights and results.

    What would be rounded is decided by the mode that really rounds, `RoundResults`; this subclass overrides the methods
    in which that mode acts, and only takes note. It also reports the real dtypes, so that no code takes another branch.

    Args:
        calls: Gets the calls that would be rounded.
        shadow_run: Repeats the calls with everything narrow.
        forward: Keeps all calls of the forward pass.
        fmt: Any format; it does not matter which.
        site: Returns the site of the running code, or None if nothing is measured now.
        in_backward: Whether the backward pass is running.
        on_error: Called once with an error in here; the training continues without the measurement.
    """

    def __init__(
        self,
        calls: PendingCalls,
        shadow_run: NarrowShadowRun,
        forward: KeptForward,
        *,
        fmt: Format,
        site: Callable[[], str | None],
        in_backward: Callable[[], bool],
        on_error: Callable[[Exception], None],
    ) -> None:
        scope = RoundingScope()
        scope.fmt = fmt
        super().__init__(OpenCalls(), scope, WHOLE)
        self._calls = calls
        self._shadow_run = shadow_run
        self._forward = forward
        self._site = site
        self._in_backward = in_backward
        self._on_error = on_error
        self._tags = torch_private.WeakIdKeyDictionary()
        self._call: RunningCall | None = None
        self._depth = 0

    @property
    def is_running(self) -> bool:
        """Whether a function is running inside this mode."""
        return self._depth > 0

    def give(self, values: Any) -> None:
        """Note the inputs of a module: unknown tensors come from outside."""
        self._tag_unknown(values, _TensorTag(_OUTSIDE))

    def take(self, values: Any, site: str) -> None:
        """Note the outputs of a module: unknown tensors are its own."""
        self._tag_unknown(values, _TensorTag(frozenset({frozenset({(site, "")})})))

    def _tag_unknown(self, values: Any, tag: _TensorTag) -> None:
        for x in plain_tensors(fp32_tensors_in(values)):
            if x not in self._tags and not isinstance(x, nn.Parameter):
                self._tags[x] = tag

    @torch_private.never_compiled
    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` unchanged, and note what would be rounded."""
        self._depth += 1
        try:
            return self._run(func, types, args, kwargs or {})
        finally:
            self._depth -= 1

    def _run(self, func: Function, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        site = None if _is_silent(func) else self._site()
        if site is None:
            return func(*args, **kwargs)
        if open_composite(func):
            return super().__torch_function__(func, types, args, kwargs)
        outer, self._call = self._call, None
        try:
            self._run_guarded(self._begin, site, func, args, kwargs)
            narrow = self._run_guarded(self._keep_call, func, args, kwargs)
            result = super().__torch_function__(func, types, args, kwargs)
            self._run_guarded(self._end, narrow, result)
        finally:
            self._call = outer
        return result

    def _run_guarded(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            with torch_private.hidden_from_functions():
                return method(*args)
        except Exception as error:
            self._call = None
            self._on_error(error)
            return None

    # -- one call ------------------------------------------------------------------------------------------------------

    def _begin(self, site: str, func: Function, args: Any, kwargs: dict[str, Any]) -> None:
        arguments = list(plain_tensors(fp32_tensors_in((args, kwargs))))
        call = RunningCall(site, op_name(func), arguments, writes=writes(func, kwargs))
        if call.written is not None:
            self._calls.before_writing(call.written)
        self._call = call

    def _keep_call(self, func: Function, args: Any, kwargs: dict[str, Any]) -> NarrowCall | None:
        call = self._call
        if call is None or not any(map(self._is_known, floats_in((args, kwargs)))):
            return None
        return NarrowCall(func, args, kwargs, writes=call.written is not None, is_recomputed=self._in_backward())

    def _is_known(self, x: Tensor) -> bool:
        return isinstance(x, nn.Parameter) or x in self._tags or self._shadow_run.knows(x)

    def _end(self, narrow: NarrowCall | None, result: Any) -> None:
        call = self._call
        if call is None:
            return
        results = [x for x in fp32_tensors_in(result) if not isinstance(x, nn.Parameter)]
        if narrow is not None and any(not call.passes_through(x) for x in results):
            is_rounded = any(map(call.rounds, results))
            narrow.stages = self._stages(call, narrow, is_rounded=is_rounded)
            if not is_rounded:
                narrow.own_places = tuple(self._own_places(call, narrow))
            narrow.result_key = EffectKey(call.site, call.op, "result") if is_rounded else None
        if narrow is not None and (floats_in(result) or call.written is not None):
            is_narrow = bool(narrow.keys) and call.site != LOOP
            given = [call.written] if call.written is not None else floats_in(result)
            self._shadow_run.follow(narrow, given, rounds=is_narrow)
            self._forward.add(narrow, given, site=call.site, op=call.op, rounds=is_narrow)
            if is_narrow or (narrow.keys and any(x.requires_grad for x in results)):
                self._calls.add(narrow, results)
            else:
                self._calls.keep(narrow, given)
        for x in plain_tensors(results):
            self._tag_result(call, x)

    def _tag_result(self, call: RunningCall, x: Tensor) -> None:
        own = (call.site, call.op)
        known = self._tags.get(x)
        if is_one_of(x, call.wide):
            # A cast from fp32 to fp32 in the model's code returns its argument, which stays as rounded as it was.
            rounded_by = known.rounded_by if known is not None and call.passes_through(x) else _OUTSIDE
            self._tags[x] = _TensorTag(rounded_by, call.site)
        elif call.rounds(x):
            self._tags[x] = _TensorTag(frozenset({frozenset({own})}))
        elif not call.passes_through(x):
            # The op only moves values: they were rounded by the ops before, or are rounded as inputs of this one.
            groups = [self._tags[each].rounded_by for each in call.arguments if each in self._tags]
            self._tags[x] = _TensorTag(frozenset(group | {own} for several in groups for group in several) or _OUTSIDE)

    def _stages(self, call: RunningCall, narrow: NarrowCall, *, is_rounded: bool) -> list[Stage]:
        """Return which operands would be rounded: those from other sites first, weights last."""
        places: dict[EffectKey, list[int]] = {}
        for place, x in enumerate(narrow.originals):
            key = self._key_of(call, x, is_rounded=is_rounded)
            if key is not None:
                places.setdefault(key, []).append(place)
        ordered = sorted(places, key=lambda key: key.part == "weight")
        return [
            Stage(
                key,
                tuple(places[key]),
                tuple(self._calls.is_new(key, narrow.originals[place]) for place in places[key]),
                key.part == "weight" and not call.is_product,
                not _is_own(key.rounded_by, call.site),
            )
            for key in ordered
        ]

    def _own_places(self, call: RunningCall, narrow: NarrowCall) -> Iterable[int]:
        for place, x in enumerate(narrow.originals):
            tag = self._tags.get(x) if is_one_of(x, call.arguments) else None
            if tag is not None and tag.wide_at != call.site and _is_own(tag.rounded_by, call.site):
                yield place

    def _key_of(self, call: RunningCall, x: Tensor, *, is_rounded: bool) -> EffectKey | None:
        if not is_one_of(x, call.arguments):
            return None
        if isinstance(x, nn.Parameter):
            # Parameters of other ops than products are rounded only if the op alone is narrow.
            rounded_by: OpGroups = frozenset() if call.is_product else frozenset({frozenset({(call.site, "")})})
            return EffectKey(call.site, call.op, "weight", rounded_by) if is_rounded else None
        tag = self._tags.get(x)
        if tag is None:
            return None
        if tag.wide_at == call.site:
            return EffectKey(call.site, call.op, "input") if call.is_product else None
        return (
            None
            if _is_own(tag.rounded_by, call.site) and not is_rounded
            else EffectKey(call.site, call.op, "input", tag.rounded_by)
        )

    # -- what the mode that rounds would do ----------------------------------------------------------------------------

    def _is_wide(self, x: Tensor) -> bool:
        tag = self._tags.get(x)
        if tag is None:
            return isinstance(x, nn.Parameter)
        return self._call is not None and tag.wide_at == self._call.site

    def _mark(self, values: Any, *, wide: bool) -> None:
        if wide and self._call is not None:
            self._call.wide.extend(fp32_tensors_in(values))

    def _narrow_operand(self, x: Tensor) -> Tensor:
        if self._call is not None:
            self._call.is_product = True
        return x

    def _round(self, result: Tensor) -> None:
        if self._call is not None and not self._call.passes_through(result):
            self._call.rounded.append(result)

    def _believed_dtype(self, x: Tensor) -> torch.dtype:
        return x.dtype

    def _cast(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Cast, and guess what the cast would mean in a narrow format: code widens a tensor, and narrows it later.

        Here both are casts from fp32 to fp32, which do nothing, so the first one is taken for the widening.
        """
        source, result = args[0], func(*args, **kwargs)
        dtype = CASTS[func] or self._first_dtype((kwargs.get("dtype"), *args[1:]))
        if result is not source or dtype is not torch.float32:
            return result
        like = next((x for x in args[1:] if isinstance(x, Tensor)), None)
        widens = self._is_wide(like) if like is not None else func is Tensor.float or not self._is_wide(source)
        if widens:
            self._mark(result, wide=True)
        return result


def _is_silent(func: Function) -> bool:
    """Whether a function computes no tensor, such as the access to an attribute."""
    name = getattr(func, "__name__", "")
    return name in ("__set__", "__delete__") or (name == "__get__" and op_name(func) not in _VIEWS)


def _is_own(groups: OpGroups, site: str) -> bool:
    """Whether tensors rounded by these groups need no rounding if this site is narrow."""
    return bool(groups) and all(any(each == site for each, _ in group) for group in groups)
