"""Runs chosen ops through another implementation: their results are overwritten with what that gives."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from roundoff.errors import first_line
from roundoff.record.following import OpPlace
from roundoff.record.op_table import OpInfo, written_arguments
from roundoff.record.placing_mode import PLAIN
from roundoff.record.reference.call import Call, Signature
from roundoff.record.reference.judgeable import computes_numbers
from roundoff.record.reference.rerun import as_computed
from roundoff.record.torch_private import hidden_from_modes, preserved_versions
from roundoff.switches.substitute_implementations import (
    Implementation,
    NotImplementedHereError,
    Results,
    results_of,
    runs_own_kernel,
)
from roundoff.switches.substitute_keys import ChosenOps


class Substituter:
    """Runs every op as it is and puts the other implementation's numbers into the results of the chosen ones.

    So whatever is particular about a result, its strides, its memory, its being an argument of the op, stays as the
    op makes it. Views, random ops and ops without numbers are never substituted.
    """

    def __init__(self, implementation: Implementation, chosen: ChosenOps) -> None:
        self.num_substituted = 0
        self.num_left: Counter[str] = Counter()
        """How often each chosen op ran as it is because the other implementation has none for it."""
        self.reasons: dict[str, str] = {}
        """Why, by op."""
        self.num_own_kernel: Counter[str] = Counter()
        """How often each chosen op that is not torch's own was computed by the very same kernel, in fp64."""
        self._implementation = implementation
        self._chosen = chosen
        self._signatures: dict[Any, Signature | None] = {}
        self._is_off = False

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Run the ops of the block as they are."""
        before, self._is_off = self._is_off, True
        try:
            yield
        finally:
            self._is_off = before

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, and the other implementation if it was chosen."""
        if self._is_off or (signature := self._signature(func)) is None or not self._chosen.has(place):
            return func(*args, **kwargs)
        call = Call(signature=signature, args=args, kwargs=kwargs)
        with hidden_from_modes():
            before = self._before(call, info)
        result = func(*args, **kwargs)
        if before is not None:
            with hidden_from_modes(), torch.no_grad():
                self._replace(before, info, results_of(call, info, result))
        return result

    def leave(self, op: str, why: str) -> None:
        """Note that a chosen op ran as it is."""
        self.num_left[op] += 1
        self.reasons.setdefault(op, why)

    def _before(self, call: Call, info: OpInfo) -> Call | None:
        """Return the call with copies of what the op is about to overwrite; None where it must run as it is."""
        tensors = call.tensors()
        if not tensors or call.get("dropout_p"):
            return None
        if not all(map(_is_plain, tensors)):
            self.leave(info.name, "some of its tensors are sparse, nested or of a class of their own.")
            return None
        written = written_arguments(call.signature.op, info, call.args, call.kwargs)
        if not written:
            return call
        memory = {_memory(x) for x in written}
        copies = {id(x): x.clone() for x in tensors if _memory(x) in memory}
        return call.change_tensors(lambda x: copies.get(id(x), x))

    def _replace(self, call: Call, info: OpInfo, results: Results) -> None:
        try:
            others = self._implementation(as_computed(call, len(results.returned)), info)
            _check(results, others)
        except NotImplementedHereError as error:
            if str(error):
                self.leave(info.name, str(error))
            return
        except Exception as error:
            self.leave(info.name, first_line(error))
            return
        _overwrite(results.returned, others.returned)
        returned = set(map(id, results.returned))
        beside = [pair for pair in zip(results.written, others.written, strict=False) if id(pair[0]) not in returned]
        _overwrite([ours for ours, _ in beside], [other for _, other in beside])
        self.num_substituted += 1
        if runs_own_kernel(self._implementation, call.signature.op, info.name):
            self.num_own_kernel[info.name] += 1

    def _signature(self, func: Any) -> Signature | None:
        if func not in self._signatures:
            self._signatures[func] = Signature.of(func) if computes_numbers(func) else None
        return self._signatures[func]


def _check(results: Results, others: Results) -> None:
    """Refuse what does not fit, before anything is overwritten."""
    if len(results.returned) != len(others.returned):
        raise ValueError(f"the other implementation gives {len(others.returned)} results, not {len(results.returned)}.")
    for ours, other in zip(results.returned, others.returned, strict=True):
        if ours.shape != other.shape:
            raise ValueError(
                f"the other implementation gives a result of shape {tuple(other.shape)}, not {tuple(ours.shape)}."
            )


def _overwrite(ours: list[Tensor], others: list[Tensor]) -> None:
    """Write the other numbers, which is no new version of a tensor: the op has just made this one."""
    with preserved_versions([x for x in ours if not x.is_inference()]):
        for x, other in zip(ours, others, strict=True):
            x.copy_(other)


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _is_plain(x: Tensor) -> bool:
    if type(x) not in PLAIN and type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    return x.layout is torch.strided and not (x.is_meta or x.is_nested)
