"""One call of a function in fp32, kept so that it can be made again in a narrow format."""

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
from roundoff.record.loop.sites import LOOP
from roundoff.record.torch_private import WeakIdKeyDictionary, hidden_from_modes
from roundoff.sensitivity.error_sums import EffectKey, ErrorSums, inner_product

_WITH_BUFFERS = frozenset({F.batch_norm, F.instance_norm})
"""Functions that write into buffers they are given, without their name saying so."""


class Stage(NamedTuple):
    """Operands that are rounded together, and where that is written down."""

    account: EffectKey
    places: tuple[int, ...]
    is_new: tuple[bool, ...]
    """Whether each of these tensors is written down there for the first time."""
    is_of_op_alone: bool
    """Whether they are rounded only where the op has a format of its own: the parameters of a norm."""
    is_of_site: bool
    """Whether they are rounded where the site has a format: they are weights, or come from elsewhere."""


class NarrowCall:
    """What a call was made of, and what it gave.

    Made again, its operands are rounded stage by stage, and then its result: what each stage adds to the result is the
    error that this rounding introduces. Together that is exactly how far the narrow call is from the wide one, given
    the same inputs.
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
        """Operands that are as their site has rounded them: rounded here only where this op is narrow by itself."""
        self.result_account: EffectKey | None = None
        self.is_recomputed = is_recomputed
        """Whether it was made in the backward pass: then it counts only if a gradient comes back to it."""
        self.is_counted = False
        self.originals: list[Tensor] = []
        """Its float tensors, as long as it is running."""
        self.operands: list[Tensor] = []
        """The same as they were before, without gradients."""
        self.results: list[Tensor] = []
        self.twin_errors: dict[Format, list[Tensor]] = {}
        """The error of each result that was put on its twin of a format."""
        self.twin_changes: dict[tuple[Format, int], Tensor] = {}
        """By format and place among the results, that error times the gradient of the real step."""
        self._func = func
        self.writes = writes
        self._random_state = torch.get_rng_state() if _draws_random_numbers(func, kwargs) else None
        self._arguments = map_floats((args, kwargs), self._keep_operand)
        self._versions: list[int] = []

    def _keep_operand(self, x: Tensor) -> Tensor:
        is_written = (self.writes and not self.operands) or (self._func in _WITH_BUFFERS and not x.requires_grad)
        self.originals.append(x)
        self.operands.append(x.detach().clone() if is_written else x.detach())
        return x.detach()

    def keep_results(self, results: Sequence[Tensor]) -> None:
        """Keep what it gave; from now on somebody may write into all of it."""
        self.originals = []
        self.results = [x.detach() for x in results]
        self._versions = [x._version for x in (*self.operands, *self.results)]

    @property
    def accounts(self) -> list[EffectKey]:
        """Where it is written down."""
        own = [self.result_account] if self.result_account is not None else []
        first = [stage.account for stage in self.stages if not stage.is_of_op_alone]
        return [*first, *own, *(stage.account for stage in self.stages if stage.is_of_op_alone)]

    @property
    def main_account(self) -> EffectKey:
        """Where what cannot be told apart is written down: of the result, if that is rounded."""
        return self.result_account or self.accounts[0]

    @property
    def rounds_more_by_itself(self) -> bool:
        """Whether it rounds operands where the op has a format of its own that it leaves alone where its site has."""
        return not all(stage.is_of_site and not stage.is_of_op_alone for stage in self.stages)

    @property
    def is_whole(self) -> bool:
        """Whether it can be made again: it was not let go, and nobody has written unseen into what it is made of."""
        kept = (*self.operands, *self.results)
        return bool(self.results) and [x._version for x in kept] == self._versions

    def before_writing(self, memory: int) -> None:
        """Have copies of the tensors in this memory: somebody is about to write into it."""
        if self.is_whole:
            self.operands = [_copy_if_in(x, memory) for x in self.operands]
            self.keep_results([_copy_if_in(x, memory) for x in self.results])

    def let_go(self) -> None:
        """Keep nothing any more."""
        self.operands, self.results, self._arguments = [], [], None
        self.twin_errors.clear()

    def errors(self, fmt: Format, place: int) -> list[Tensor]:
        """Return what rounding to a format adds to one of the results: one tensor for each of `accounts`."""
        operands, before, found = list(self.operands), self.results[place], []
        for stage in (stage for stage in self.stages if not stage.is_of_op_alone):
            after = self._with_rounded(stage, operands, fmt, place)
            found.append(after - before)
            before = after
        if self.result_account is not None:
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
        return [x for x in self.made_again(operands) if x.dtype is torch.float32][place]

    def made_narrow(self, operands: Sequence[Tensor], fmt: Format, *, by_itself: bool = False) -> list[Tensor]:
        """Return what the call gives for other operands if these and the results are rounded.

        `by_itself` where only this op is narrow, so that all of its operands are rounded for it, but for what it writes
        into: that stays the tensor that it is.
        """
        places = {place for stage in self.stages if by_itself or stage.is_of_site for place in stage.places}
        if by_itself:
            places = places.union(self.own_places) - ({0} if self.writes else set())
        narrow = [round_to(x, fmt) if place in places else x for place, x in enumerate(operands)]
        results = self.made_again(narrow)
        return results if self.result_account is None else [round_to(x, fmt) for x in results]

    def made_again(self, operands: Sequence[Tensor], *, in_place: bool = False) -> list[Tensor]:
        """Return what the call gives for other operands: its float tensors, or what it writes into.

        `in_place` lets it write into its operand; buffers are never written into.
        """
        copies = self._func in _WITH_BUFFERS or (self.writes and not in_place)
        given = [x.clone() for x in operands] if copies else list(operands)
        left = iter(given)
        args, kwargs = map_floats(self._arguments, lambda _: next(left))
        with contextlib.ExitStack() as stack:
            if self._random_state is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.set_rng_state(self._random_state)
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
    """Return where a tensor's memory is: good as long as somebody keeps the tensor."""
    return x.untyped_storage().data_ptr()


def _copy_if_in(x: Tensor, memory: int) -> Tensor:
    return x.clone() if memory_of(x) == memory else x


def _draws_random_numbers(func: Function, kwargs: dict[str, Any]) -> bool:
    """Say whether a function draws random numbers."""
    name = getattr(func, "__name__", "")
    return "dropout" in name or name in ("rrelu", "rrelu_", "gumbel_softmax") or bool(kwargs.get("dropout_p"))


class PendingCalls:
    """Writes every call into the ledger when the gradient of its result comes, and then lets it go.

    Args:
        ledger: Where it is added up.
        scale: Returns what gradients that come now are to be divided by; None if they are none of the loss.
        on_error: Called with what went wrong while a gradient was looked at.
    """

    def __init__(
        self, ledger: ErrorSums, *, scale: Callable[[], Tensor | float | None], on_error: Callable[[Exception], None]
    ) -> None:
        self._ledger = ledger
        self._scale = scale
        self._on_error = on_error
        self._calls: list[NarrowCall] = []
        self._by_memory: dict[int, list[NarrowCall]] = {}
        self._written_down = WeakIdKeyDictionary()

    def is_new(self, account: EffectKey, x: Tensor) -> bool:
        """Say whether a tensor, as it is now, has never been written down in an account; from now on it has."""
        known: set[tuple[EffectKey, int]] = self._written_down.setdefault(x, set())
        if (account, x._version) in known:
            return False
        known.add((account, x._version))
        return True

    def add(self, call: NarrowCall, results: list[Tensor]) -> None:
        """Keep a call until the gradients of its results have come."""
        self.keep(call, results)
        self._ledger.open(call.accounts)
        self._calls.append(call)
        for place, x in enumerate(results):
            if x.requires_grad:
                x.register_hook(self._arriving(call, place))

    def keep(self, call: NarrowCall, results: list[Tensor]) -> None:
        """Let nobody write into what a call is made of and what it gave."""
        call.keep_results(results)
        for memory in {memory_of(x) for x in (*call.operands, *call.results)}:
            self._by_memory.setdefault(memory, []).append(call)

    def before_writing(self, x: Tensor) -> None:
        """Keep what a tensor holds now: somebody is about to write into it."""
        memory = memory_of(x)
        for call in self._by_memory.pop(memory, ()):
            call.before_writing(memory)

    def backward_ended(self) -> None:
        """Let go of the calls whose gradients have come: no more will."""
        for call in self._calls:
            if call.is_counted:
                call.let_go()
        self._calls = [call for call in self._calls if not call.is_counted]

    def finish(self) -> None:
        """Write down what no gradient came to, and let go of everything.

        In the loop such things are numbers for a log, not a part of the step.
        """
        for call in self._calls:
            is_part = not call.is_recomputed and all(account.site != LOOP for account in call.accounts)
            if is_part and not call.is_counted and call.is_whole:
                self._write_values(call)
        self.forget()

    def forget(self) -> None:
        """Let go of everything."""
        for call in self._calls:
            call.let_go()
        self._calls.clear()
        self._by_memory.clear()
        self._written_down.clear()

    def _arriving(self, call: NarrowCall, place: int) -> Callable[[Tensor], None]:
        def arrived(gradient: Tensor) -> None:
            try:
                with hidden_from_modes(), torch.no_grad():
                    self._arrived(call, place, gradient)
            except Exception as error:
                self._on_error(error)

        return arrived

    def _arrived(self, call: NarrowCall, place: int, gradient: Tensor) -> None:
        scale = self._scale()
        if scale is None or not call.is_whole or gradient.layout != torch.strided:
            return
        gradient = gradient / scale
        if not call.is_counted:
            self._write_values(call)
        self._ledger.add_gradient(call.accounts, gradient)
        for fmt in self._ledger.formats:
            for account, error in zip(call.accounts, call.errors(fmt, place), strict=True):
                self._ledger.add_change(account, fmt, alone=inner_product(error, gradient))
        for fmt, errors in call.twin_errors.items():
            change = inner_product(errors[place], gradient)
            call.twin_changes[fmt, place] = change
            self._ledger.add_change(call.main_account, fmt, together=change)

    def twin_arrived(self, call: NarrowCall, fmt: Format, place: int, gradient: Tensor) -> None:
        """Write down what all errors do to the gradient of a result: half of that, times its own error."""
        before = call.twin_changes.pop((fmt, place), None)
        if before is not None:
            after = inner_product(call.twin_errors[fmt][place], gradient)
            self._ledger.add_change(call.main_account, fmt, together=(after - before) / 2)

    def _write_values(self, call: NarrowCall) -> None:
        call.is_counted = True
        for stage in call.stages:
            for which, is_new in zip(stage.places, stage.is_new, strict=True):
                if is_new:
                    self._ledger.add_value(stage.account, call.operands[which])
        if call.result_account is not None:
            for x in call.results:
                self._ledger.add_value(call.result_account, x)
