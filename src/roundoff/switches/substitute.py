"""The switch `substitute`: chosen ops run through another implementation, forward, backward and in the optimizer."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from roundoff.record.following import Following
from roundoff.record.torch_private import FunctionMode, push_function_mode, remove_function_mode
from roundoff.switches.substitute_implementations import (
    Implementation,
    UsersFunction,
    implementation_named,
    is_torchs_own,
)
from roundoff.switches.substitute_keys import ChosenOps
from roundoff.switches.substitute_listing import listing_ops, write_listing
from roundoff.switches.substitute_ops import Substituter

OPTIONS = frozenset({"ops", "list"})


class SubstituteWarning(UserWarning):
    """The block ended, and some of the ops that were chosen ran as they are, or never came."""


def switching(value: str, options: Mapping[str, str]) -> contextlib.AbstractContextManager[Any]:
    """Return the block in which the ops that `options["ops"]` names run through the implementation `value`.

    With `options["list"]`, a file, nothing is substituted: the ops of the first step are listed there instead, with how
    far the two implementations are apart.

    Raises:
        SwitchError: the implementation does not exist, or the list of ops is none.
    """
    implementation = implementation_named(value)
    if "list" in options:
        return _listing_into(Path(options["list"]), value)
    return substituting(implementation, ChosenOps.from_text(options.get("ops")))


@contextlib.contextmanager
def substituting(implementation: Implementation, chosen: ChosenOps) -> Iterator[Substituter]:
    """Run the chosen ops of the block through `implementation`; everything else stays bit for bit as it is.

    Compiled models run eagerly inside the block. What could not be substituted is told at its end.
    """
    substituter = Substituter(implementation, chosen)
    following = Following(substituter)
    with contextlib.ExitStack() as stack:
        stack.enter_context(following.running())
        if isinstance(implementation, UsersFunction):
            mode = _UsersOps(implementation, chosen, substituter, following)
            push_function_mode(mode)
            stack.callback(remove_function_mode, mode)
        yield substituter
    if complaints := _complaints(substituter, chosen, following):
        text = "\n  ".join(complaints)
        warnings.warn(f"Not everything was substituted:\n  {text}", SubstituteWarning, stacklevel=4)


@contextlib.contextmanager
def _listing_into(file: Path, implementation: str) -> Iterator[None]:
    with listing_ops(by=implementation, on_done=lambda listing: write_listing(listing, file)):
        yield


def _complaints(substituter: Substituter, chosen: ChosenOps, following: Following) -> list[str]:
    left = [
        f"{op} ran as it is ({num}x): {substituter.reasons[op]}" for op, num in sorted(substituter.num_left.items())
    ]
    own = [
        f"{op} ran its own kernel in fp64, too ({num}x): what it or its gradient formula gets wrong in every format "
        "stays wrong; name another implementation, substitute=module:function."
        for op, num in sorted(substituter.num_own_kernel.items())
    ]
    missing = [f"no op came that '{key}' names." for key in chosen.unused]
    threads = (
        ["a thread of its own computed something; its ops ran as they are."] if following.has_other_threads else []
    )
    return left + own + missing + threads


class _UsersOps(FunctionMode):
    """Has the user's function take the place of whole operators, above autograd: their gradient is then its gradient.

    An operator of aten has its backward in other ops, which can be chosen by themselves; one that somebody registered
    has it in a formula of their own, which is no op.
    """

    def __init__(self, users: UsersFunction, chosen: ChosenOps, substituter: Substituter, following: Following) -> None:
        super().__init__()
        self._function = users.function
        self._chosen = chosen
        self._substituter = substituter
        self._following = following

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Ask the user's function where a chosen operator is called that is not torch's own."""
        op = _registered_op(func)
        if op is None or not self._chosen.has(self._following.place_of(op)):
            return func(*args, **(kwargs or {}))
        with self._substituter.off():
            result = self._function(op, *args, **(kwargs or {}))
        if result is NotImplemented:
            return func(*args, **(kwargs or {}))
        self._substituter.num_substituted += 1
        return result


def _registered_op(func: Any) -> str | None:
    """Return the name of an operator that is not one of torch's own, `mine.gelu`."""
    if isinstance(func, torch._ops.OpOverload):
        func = func.overloadpacket
    if not isinstance(func, torch._ops.OpOverloadPacket):
        return None
    name = func._qualified_op_name.replace("::", ".")
    return None if is_torchs_own(name) else name
