"""The calls of a step that would be rounded, kept so that they can be repeated in a narrow format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.formats import Format, round_to
from roundoff.precision.compute.computation import map_floats
from roundoff.precision.compute.torch_ops import Function
from roundoff.record.accelerator import keeping_torch_generators, restore_torch, torch_generators
from roundoff.record.loop.sites import LOOP
from roundoff.sensitivity.error_sums import EffectKey, ErrorSums, inner_product
from roundoff.torch_private import WeakIdKeyDictionary, hidden_from_modes

_WITH_BUFFERS = frozenset({F.batch_norm, F.instance_norm})
"""Functions that write into buffers although their name does not say so."""


class Stage(NamedTuple):
    """Operands that are rounded together, and the key that their effect is added to."""

    key: EffectKey
    places: tuple[int, ...]
    is_new: tuple[bool, ...]
    """Whether each of these tensors is recorded under that key for the first time."""
    is_of_op_alone: bool
    """Whether they are rounded only if the op has its own format: the parameters of a norm."""
    is_of_site: bool
    """Whether they are rounded if the site has a format: they are weights, or come from another site."""


class NarrowCall:
    """A call with its operands and results.

    When it is repeated, its operands are rounded stage by stage, and then its result: what each stage changes in the
    result is the error that this rounding introduces. Together these errors are exactly the difference between the
    narrow call and the wide one for the same inputs.
    """

    def __init__(
        self,
        func: Function,
        args: Any,
        kwargs: dict[str, Any],
        *,
        writes: bool,
        is_recomputed: bool,
    ) -> None:
        self.stages: list[Stage] = []
        self.own_places: tuple[int, ...] = ()
        """Operands that their own site has already rounded: they are rounded here only if this op alone is narrow."""
        self.result_key: EffectKey | None = None
        self.is_recomputed = is_recomputed
        """Whether it ran in the backward pass: then it counts only if a gradient arrives at it."""
        self.is_counted = False
        self.originals: list[Tensor] = []
        """Its float tensors, while it is running."""
        self.operands: list[Tensor] = []
        """The same tensors as they were before the call, detached."""
        self.results: list[Tensor] = []
        self.shadow_errors: dict[Format, list[Tensor]] = {}
        """By format, the error that was added to the shadow of each result."""
        self.shadow_changes: dict[tuple[Format, int], Tensor] = {}
        """By format and index of the result, that error times the gradient of the real step."""
        self._func = func
        self.writes = writes
        self._random_state = torch_generators() if _draws_random_numbers(func, kwargs) else None
        self._arguments = map_floats((args, kwargs), self._keep_operand)
        self._versions: list[int] = []

    def _keep_operand(self, x: Tensor) -> Tensor:
        is_written = (self.writes and not self.operands) or (self._func in _WITH_BUFFERS and not x.requires_grad)
        self.originals.append(x)
        self.operands.append(x.detach().clone() if is_written else x.detach())
        return x.detach()

    def keep_results(self, results: Sequence[Tensor]) -> None:
        """Keep the results; from now on operands and results may be overwritten."""
        self.originals = []
        self.results = [x.detach() for x in results]
        # Torch counts the writes to a tensor in `_version`, and offers no public way to notice one.
        self._versions = [x._version for x in (*self.operands, *self.results)]

    @property
    def keys(self) -> list[EffectKey]:
        """The keys that its effects are added to."""
        own = [self.result_key] if self.result_key is not None else []
        first = [stage.key for stage in self.stages if not stage.is_of_op_alone]
        return [*first, *own, *(stage.key for stage in self.stages if stage.is_of_op_alone)]

    @property
    def main_key(self) -> EffectKey:
        """The key for effects that belong to the whole call: that of the result, if the result is rounded."""
        return self.result_key or self.keys[0]

    @property
    def rounds_more_by_itself(self) -> bool:
        """Whether it rounds more operands if only the op is narrow than if its whole site is."""
        return not all(stage.is_of_site and not stage.is_of_op_alone for stage in self.stages)

    @property
    def is_whole(self) -> bool:
        """Whether it can be repeated: it was not released, and its tensors were not overwritten unnoticed."""
        kept = (*self.operands, *self.results)
        return bool(self.results) and [x._version for x in kept] == self._versions

    def before_writing(self, memory: int) -> None:
        """Copy the tensors in this memory, because it is about to be overwritten."""
        if self.is_whole:
            self.operands = [_copy_if_in(x, memory) for x in self.operands]
            self.keep_results([_copy_if_in(x, memory) for x in self.results])

    def release(self) -> None:
        """Release everything that it keeps."""
        self.operands, self.results, self._arguments = [], [], None
        self.shadow_errors.clear()

    def errors(self, fmt: Format, place: int) -> list[Tensor]:
        """Return the errors that rounding introduces in one of the results: one tensor for each of `keys`."""
        operands, before, found = list(self.operands), self.results[place], []
        for stage in (stage for stage in self.stages if not stage.is_of_op_alone):
            after = self._with_rounded(stage, operands, fmt, place)
            found.append(after - before)
            before = after
        if self.result_key is not None:
            after = round_to(before, fmt)
            found.append(after - before)
            before = after
        for stage in (stage for stage in self.stages if stage.is_of_op_alone):
            after = round_to(self._with_rounded(stage, operands, fmt, place), fmt)
            found.append(after - before)
            before = after
        return found

    def _with_rounded(self, stage: Stage, operands: list[Tensor], fmt: Format, place: int) -> Tensor:
        for which in stage.places:
            operands[which] = round_to(operands[which], fmt)
        return self._result(operands, place)

    def _result(self, operands: list[Tensor], place: int) -> Tensor:
        return [x for x in self.repeat(operands) if x.dtype is torch.float32][place]

    def repeat_narrow(self, operands: Sequence[Tensor], fmt: Format, *, by_itself: bool = False) -> list[Tensor]:
        """Return the results of the call for other operands, with these and the results rounded.

        With `by_itself` only this op is narrow, so all its operands are rounded for it, except the one that it writes
        into, which must remain the same tensor.
        """
        places = {place for stage in self.stages if by_itself or stage.is_of_site for place in stage.places}
        if by_itself:
            places = places.union(self.own_places) - ({0} if self.writes else set())
        narrow = [round_to(x, fmt) if place in places else x for place, x in enumerate(operands)]
        results = self.repeat(narrow)
        return results if self.result_key is None else [round_to(x, fmt) for x in results]

    def repeat(self, operands: Sequence[Tensor], *, in_place: bool = False) -> list[Tensor]:
        """Return the results of the call for other operands: its float tensors, or the one that it writes into.

        `in_place` lets it write into its operand; buffers are never changed.
        """
        copies = self._func in _WITH_BUFFERS or (self.writes and not in_place)
        given = [x.clone() for x in operands] if copies else list(operands)
        left = iter(given)
        args, kwargs = map_floats(self._arguments, lambda _: next(left))
        with contextlib.ExitStack() as stack:
            if self._random_state is not None:
                stack.enter_context(keeping_torch_generators())
                restore_torch(self._random_state)
            result = self._func(*args, **kwargs)
        return given[:1] if self.writes else floats_in(result)


def floats_in(values: Any) -> list[Tensor]:
    """Return the float tensors among values, in tuples, lists and dicts."""
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        return [x for value in values for x in floats_in(value)]
    return []


def fp32_tensors_in(values: Any) -> list[Tensor]:
    """Return the fp32 tensors among values."""
    return [x for x in floats_in(values) if x.dtype is torch.float32]


def memory_of(x: Tensor) -> int:
    """Return the address of a tensor's memory; it is valid only as long as the tensor exists."""
    return x.untyped_storage().data_ptr()


def _copy_if_in(x: Tensor, memory: int) -> Tensor:
    return x.clone() if memory_of(x) == memory else x


def _draws_random_numbers(func: Function, kwargs: dict[str, Any]) -> bool:
    """Whether a function draws random numbers."""
    name = getattr(func, "__name__", "")
    return "dropout" in name or name in ("rrelu", "rrelu_", "gumbel_softmax") or bool(kwargs.get("dropout_p"))


class PendingCalls:
    """Keeps every call until the gradient of its result arrives, adds its effects up, and releases it.

    Args:
        error_sums: Where effects are added up.
        scale: Returns the loss scale of the gradients that arrive now; None if they do not come from the loss.
        on_error: Called with an error in the handling of a gradient.
    """

    def __init__(
        self,
        error_sums: ErrorSums,
        *,
        scale: Callable[[], Tensor | float | None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._error_sums = error_sums
        self._scale = scale
        self._on_error = on_error
        self._calls: list[NarrowCall] = []
        self._by_memory: dict[int, list[NarrowCall]] = {}
        self._recorded = WeakIdKeyDictionary()

    def is_new(self, key: EffectKey, x: Tensor) -> bool:
        """Whether a tensor, with its present value, is not recorded under a key yet; it is recorded now."""
        known: set[tuple[EffectKey, int]] = self._recorded.setdefault(x, set())
        if (key, x._version) in known:
            return False
        known.add((key, x._version))
        return True

    def add(self, call: NarrowCall, results: list[Tensor]) -> None:
        """Keep a call until the gradients of its results have arrived."""
        self.keep(call, results)
        self._error_sums.open(call.keys)
        self._calls.append(call)
        for place, x in enumerate(results):
            if x.requires_grad:
                x.register_hook(self._gradient_hook(call, place))

    def keep(self, call: NarrowCall, results: list[Tensor]) -> None:
        """Protect the operands and results of a call from being overwritten."""
        call.keep_results(results)
        for memory in {memory_of(x) for x in (*call.operands, *call.results)}:
            self._by_memory.setdefault(memory, []).append(call)

    def before_writing(self, x: Tensor) -> None:
        """Copy a tensor for the calls that use it, because it is about to be overwritten."""
        memory = memory_of(x)
        for call in self._by_memory.pop(memory, ()):
            call.before_writing(memory)

    def backward_ended(self) -> None:
        """Release the calls whose gradients have arrived."""
        for call in self._calls:
            if call.is_counted:
                call.release()
        self._calls = [call for call in self._calls if not call.is_counted]

    def finish(self) -> None:
        """Record the values of calls without gradients, and release everything.

        Calls of the loop without gradients are left out: they compute numbers for a log and are not part of the step.
        """
        for call in self._calls:
            is_part = not call.is_recomputed and all(key.site != LOOP for key in call.keys)
            if is_part and not call.is_counted and call.is_whole:
                self._write_values(call)
        self.forget()

    def forget(self) -> None:
        """Release everything."""
        for call in self._calls:
            call.release()
        self._calls.clear()
        self._by_memory.clear()
        self._recorded.clear()

    def _gradient_hook(self, call: NarrowCall, place: int) -> Callable[[Tensor], None]:
        def on_gradient(gradient: Tensor) -> None:
            try:
                with hidden_from_modes(), torch.no_grad():
                    self._count_gradient(call, place, gradient)
            except Exception as error:
                self._on_error(error)

        return on_gradient

    def _count_gradient(self, call: NarrowCall, place: int, gradient: Tensor) -> None:
        scale = self._scale()
        if scale is None or not call.is_whole or gradient.layout != torch.strided:
            return
        gradient = gradient / scale
        if not call.is_counted:
            self._write_values(call)
        self._error_sums.add_gradient(call.keys, gradient)
        for fmt in self._error_sums.formats:
            for key, error in zip(call.keys, call.errors(fmt, place), strict=True):
                self._error_sums.add_change(key, fmt, alone=inner_product(error, gradient))
        for fmt, errors in call.shadow_errors.items():
            change = inner_product(errors[place], gradient)
            call.shadow_changes[fmt, place] = change
            self._error_sums.add_change(call.main_key, fmt, together=change)

    def shadow_gradient_arrived(self, call: NarrowCall, fmt: Format, place: int, gradient: Tensor) -> None:
        """Add the effect of all errors on the gradient of a result: half of it, times the result's own error."""
        before = call.shadow_changes.pop((fmt, place), None)
        if before is not None:
            after = inner_product(call.shadow_errors[fmt][place], gradient)
            self._error_sums.add_change(call.main_key, fmt, together=(after - before) / 2)

    def _write_values(self, call: NarrowCall) -> None:
        call.is_counted = True
        for stage in call.stages:
            for which, is_new in zip(stage.places, stage.is_new, strict=True):
                if is_new:
                    self._error_sums.add_value(stage.key, call.operands[which])
        if call.result_key is not None:
            for x in call.results:
                self._error_sums.add_value(call.result_key, x)
