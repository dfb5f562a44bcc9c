"""The ops of one step in order, and how much two implementations of each differ."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundoff.errors import SwitchError
from roundoff.files import write_atomically
from roundoff.record.ops.interceptor import OpInterceptor, OpPlace
from roundoff.record.ops.op_table import OpInfo, describe_op
from roundoff.record.reference import Reference
from roundoff.record.reference.exact_rerun import computes_numbers
from roundoff.record.reference.op_call import OpCall, Signature
from roundoff.switches.implementations import Implementation, implementation_named, results_of, runs_own_kernel
from roundoff.torch_private import hidden_from_modes


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOp:
    """One op of one site and phase, over all its calls there."""

    key: str
    """`blocks.1.attn:backward:aten.mm`, as `substitute.ops` takes it."""
    site: str
    max_ulps: float | None = None
    """How much its results differ from those of the other implementation for the same inputs, in units of what rounding
    to their format explains; None if that was not or cannot be measured."""
    runs_own_kernel: bool = False
    """Whether it is an operator of another library that the other implementation computes by the same kernel: then
    there is no difference, and substituting it changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The ops of one step, in the order in which each was first called."""

    ops: tuple[ListedOp, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all ops."""
        return tuple(op.key for op in self.ops)

    @property
    def own_kernels(self) -> tuple[str, ...]:
        """The operators, `mylib.gelu`, that the other implementation computes by the same kernels."""
        return tuple(sorted({op.key.rpartition(":")[2] for op in self.ops if op.runs_own_kernel}))

    @property
    def suspects(self) -> tuple[ListedOp, ...]:
        """The ops, those that differ most first, those that were not measured last."""
        return tuple(sorted(self.ops, key=lambda op: -1.0 if op.max_ulps is None else op.max_ulps, reverse=True))

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites of all ops, the most suspicious first."""
        return tuple(dict.fromkeys(op.site for op in self.suspects))


class Listed:
    """What a block that lists ops has found."""

    def __init__(self) -> None:
        self.listing = Listing()
        """Empty until the step has ended."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all ops of the step, in their order."""
        return self.listing.keys


@contextlib.contextmanager
def listing_ops(
    *, step: int = 0, by: str | None = None, on_done: Callable[[Listing], None] | None = None
) -> Iterator[Listed]:
    """List the ops that can be substituted in one step of the training in the block; the training is unchanged.

    Args:
        step: Which step, counted from 0.
        by: Another implementation, as for `substitute`; its difference from each op is measured.
        on_done: Called when the step has ended.
    """
    lister = _Lister(by)
    listed = Listed()

    def end_step(ended: int) -> None:
        if ended == step:
            lister.is_done = True
            listed.listing = lister.listing()
            if on_done is not None:
                on_done(listed.listing)
        lister.is_on = ended + 1 == step

    lister.is_on = step == 0
    with OpInterceptor(lister, on_step_end=end_step).running():
        yield listed


def differing_ops(run_step: Callable[[], Any], *, by: str = "fp64") -> tuple[ListedOp, ...]:
    """Return the ops of one training step, those that differ most from another implementation first.

    Both implementations of an op get the same inputs, so errors of earlier ops do not count. A correct op differs by a
    few ulps; one that differs by thousands is wrong, or badly conditioned.
    """
    with listing_ops(by=by) as listed:
        run_step()
    return listed.listing.suspects


def write_listing(listing: Listing, file: Path) -> None:
    """Write a listing as JSON, for `read_listing` in another process."""
    # As text, because JSON has no infinity.
    ulps = [None if op.max_ulps is None else str(op.max_ulps) for op in listing.ops]
    ops = [asdict(op) | {"max_ulps": each} for op, each in zip(listing.ops, ulps, strict=True)]
    write_atomically(file, f"{json.dumps({'ops': ops}, indent=1)}\n".encode())


def read_listing(file: Path) -> Listing:
    """Read a listing from a file that `write_listing` wrote.

    Raises:
        SwitchError: there is none.
    """
    try:
        ops = json.loads(file.read_text(encoding="utf-8"))["ops"]
        ulps = [None if op["max_ulps"] is None else float(op["max_ulps"]) for op in ops]
        return Listing(ops=tuple(ListedOp(**op | {"max_ulps": each}) for op, each in zip(ops, ulps, strict=True)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SwitchError.explain(
            f"'{file}' holds no list of ops.", why=f"{error}.", fix="check that the training takes at least one step."
        ) from error


def _make_reference(by: str, implementation: Implementation) -> Reference:
    """Return the reference that runs each op again by another implementation."""
    if by == "fp64":
        return Reference("fp64")  # it computes in pieces, which is faster
    if by == "cpu":
        return Reference("cpu")

    def run(call: OpCall) -> list[Tensor]:
        return implementation(call, describe_op(call.signature.op)).returned

    return Reference("fp64", run=run)


class _Lister:
    """Runs ops unchanged, notes their places, and measures how much another implementation differs."""

    def __init__(self, by: str | None) -> None:
        self.is_on = True
        self.is_done = False
        self._implementation: Implementation | None = None
        self._reference: Reference | None = None
        if by is not None:
            self._implementation = implementation_named(by)
            self._reference = _make_reference(by, self._implementation)
        self._computes: dict[Any, bool] = {}
        self._worst: dict[OpPlace, list[Tensor]] = {}
        self._own_kernels: set[OpPlace] = set()

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op unchanged."""
        if not self.is_on or self.is_done or not self._can_be_listed(func):
            return func(*args, **kwargs)
        worst = self._worst.setdefault(place, [])
        if self._reference is None or self._implementation is None:
            return func(*args, **kwargs)
        if runs_own_kernel(self._implementation, func, place.op):
            self._own_kernels.add(place)
        with hidden_from_modes():
            saved = self._reference.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if saved is not None:
            call = OpCall(signature=Signature.of(func), args=args, kwargs=kwargs)
            with hidden_from_modes(), torch.no_grad():
                found = self._reference.after(saved, func, args, kwargs, results_of(call, info, result).returned)
            worst.extend(error.worst for error in found if error is not None)
        return result

    def listing(self) -> Listing:
        """Return the ops so far."""
        return Listing(
            ops=tuple(
                ListedOp(
                    key=place.key,
                    site=place.site,
                    max_ulps=max(map(float, worst)) if worst else None,
                    runs_own_kernel=place in self._own_kernels,
                )
                for place, worst in self._worst.items()
            )
        )

    def _can_be_listed(self, func: Any) -> bool:
        if func not in self._computes:
            self._computes[func] = computes_numbers(func)
        return self._computes[func]
