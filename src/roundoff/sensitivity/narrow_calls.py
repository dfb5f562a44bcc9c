"""The calls of a step that would be rounded, kept until their gradients come."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.record.sites import LOOP
from roundoff.record.torch_private import WeakIdKeyDictionary, hidden_from_modes
from roundoff.sensitivity.ledger import Account, Ledger
from roundoff.sensitivity.narrow_call import NarrowCall, memory_of
from roundoff.sensitivity.rounding_statistics import inner_product


class NarrowCalls:
    """Writes every call into the ledger when the gradient of its result comes, and then lets it go.

    Args:
        ledger: Where it is added up.
        scale: Returns what gradients that come now are to be divided by; None if they are none of the loss.
        on_error: Called with what went wrong while a gradient was looked at.
    """

    def __init__(
        self, ledger: Ledger, *, scale: Callable[[], Tensor | float | None], on_error: Callable[[Exception], None]
    ) -> None:
        self._ledger = ledger
        self._scale = scale
        self._on_error = on_error
        self._calls: list[NarrowCall] = []
        self._by_memory: dict[int, list[NarrowCall]] = {}
        self._written_down = WeakIdKeyDictionary()

    def is_new(self, account: Account, x: Tensor) -> bool:
        """Say whether a tensor, as it is now, has never been written down in an account; from now on it has."""
        known: set[tuple[Account, int]] = self._written_down.setdefault(x, set())
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
