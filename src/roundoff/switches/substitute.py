"""Runs chosen ops through another implementation: their results are overwritten with what that gives."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from roundoff import torch_private
from roundoff.errors import SwitchError, first_line
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.ops.interceptor import OpInterceptor, OpPlace
from roundoff.record.ops.op_table import OpInfo, written_arguments
from roundoff.record.ops.site_tracking import PLAIN
from roundoff.record.reference.exact_rerun import as_computed, computes_numbers
from roundoff.record.reference.op_call import OpCall, Signature
from roundoff.switches.implementations import (
    Implementation,
    NotImplementedHereError,
    Results,
    UsersFunction,
    implementation_named,
    is_torchs_own,
    results_of,
    runs_own_kernel,
)
from roundoff.switches.op_listing import listing_ops, write_listing

_FURTHER_MODEL: Final = re.compile(r"(?:[^\W\d]\w*(?:#\d+)?|[^:]*[*?\[][^:]*):[^:]*")
"""The site of a further model: its class, or a pattern for it, a colon, and the path of a module."""


class ChosenOps:
    """The ops that a list of keys names; all of them if there is no list.

    A key is a site, `blocks.1.attn`, which means the ops of that module's own code in all phases and not those of its
    children; a site and a phase, `blocks.1.attn:backward`; or both and an op, `blocks.1.attn:backward:aten.mm`. Each
    part may be a shell pattern: `*:backward:aten.gelu*`.
    """

    def __init__(self, keys: Iterable[str] | None) -> None:
        self._keys = None if keys is None else {key: _parse_key(key) for key in keys}
        self._unused = set(self._keys or ())
        self._known: dict[OpPlace, bool] = {}

    @classmethod
    def from_text(cls, text: str | None) -> ChosenOps:
        """Read a JSON list of keys, or keys separated by commas; None means all ops, an empty string none.

        Raises:
            SwitchError: it is neither, or a key is invalid.
        """
        if text is None:
            return cls(None)
        if not text.lstrip().startswith("["):
            return cls(key.strip() for key in text.split(",") if key.strip())
        try:
            keys = json.loads(text)
        except json.JSONDecodeError as error:
            raise _list_error(text, f"it starts like a JSON list, but is not valid JSON: {error}") from error
        if not all(isinstance(key, str) for key in keys):
            raise _list_error(text, "every key must be a string")
        return cls(keys)

    @property
    def unused(self) -> list[str]:
        """Keys that no op has matched so far."""
        return [key for key in self._keys or () if key in self._unused]

    def has(self, place: OpPlace) -> bool:
        """Whether an op is chosen.

        Raises:
            SwitchError: a key is this op's site and something that is not a phase.
        """
        if self._keys is None:
            return True
        known = self._known.get(place)
        if known is None:
            self._refuse_other_phases(place.site)
            matching = [key for key, parts in self._keys.items() if _matches_place(parts, place)]
            self._unused.difference_update(matching)
            known = self._known[place] = bool(matching)
        return known

    def _refuse_other_phases(self, site: str) -> None:
        """Raise if what looked like a site of a further model, `head:sideways`, is a site with a misspelt phase."""
        for key, parts in (self._keys or {}).items():
            if parts[0] == key and key.rpartition(":")[0] == site:
                raise _key_error(key)


def _parse_key(key: str) -> tuple[str, str, str]:
    """Split a key from its end: the site of a further model contains a colon, `Critic:head`."""
    site, _, last = key.rpartition(":")
    if last in PHASES and site:
        return site, last, "*"
    before, _, phase = site.rpartition(":")
    if phase in (*PHASES, "*") and before and "." in last.replace("*", "."):
        return before, phase, last
    if not key:
        raise SwitchError.explain("An empty key names no op.", fix="write a site, `blocks.1.attn`.")
    if ":" in key and not _FURTHER_MODEL.fullmatch(key):
        raise _key_error(key)
    return key, "*", "*"


def _matches_place(parts: tuple[str, str, str], place: OpPlace) -> bool:
    return all(part == name or fnmatchcase(name, part) for part, name in zip(parts, place, strict=True))


def _key_error(key: str) -> SwitchError:
    return SwitchError.explain(
        f"substitute.ops: '{key}' names no ops.",
        why=f"a site is followed by a phase ({', '.join(PHASES)}), and that by an op with its library, aten.mm.",
        fix="write site, site:phase or site:phase:op: blocks.1.attn:backward:aten.mm",
    )


def _list_error(text: str, why: str) -> SwitchError:
    shown = text if len(text) < 80 else f"{text[:80]}..."
    return SwitchError.explain(
        f"substitute.ops = {shown!r} is not a list of ops.",
        why=f"{why}.",
        fix='write keys separated by commas, or as JSON: ["blocks.1.attn:backward:aten.mm"].',
    )


class Substituter:
    """Runs every op, and overwrites the results of the chosen ones with those of the other implementation.

    So the strides and the memory of a result, and whether it is an argument of the op, stay as the op makes them.
    Views, random ops and ops without numbers are never substituted.
    """

    def __init__(self, implementation: Implementation, chosen: ChosenOps) -> None:
        self.num_substituted = 0
        self.num_left: Counter[str] = Counter()
        """How often each chosen op was not substituted, because the other implementation has no version of it."""
        self.reasons: dict[str, str] = {}
        """Why it was not, by op."""
        self.num_own_kernel: Counter[str] = Counter()
        """How often each chosen op of another library was computed by the same kernel, in fp64."""
        self._implementation = implementation
        self._chosen = chosen
        self._signatures: dict[Any, Signature | None] = {}
        self._is_off = False

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Substitute nothing inside the block."""
        before, self._is_off = self._is_off, True
        try:
            yield
        finally:
            self._is_off = before

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, and also the other implementation if the op is chosen."""
        if self._is_off or (signature := self._signature(func)) is None or not self._chosen.has(place):
            return func(*args, **kwargs)
        call = OpCall(signature=signature, args=args, kwargs=kwargs)
        with torch_private.hidden_from_modes():
            before = self._before(call, info)
        result = func(*args, **kwargs)
        if before is not None:
            with torch_private.hidden_from_modes(), torch.no_grad():
                self._replace(before, info, results_of(call, info, result))
        return result

    def leave(self, op: str, why: str) -> None:
        """Note that a chosen op was not substituted."""
        self.num_left[op] += 1
        self.reasons.setdefault(op, why)

    def _before(self, call: OpCall, info: OpInfo) -> OpCall | None:
        """Return the call with copies of what the op will overwrite; None if it must not be substituted."""
        tensors = call.tensors()
        if not tensors or call.get("dropout_p"):
            return None
        if not all(map(_is_plain, tensors)):
            self.leave(info.name, "some of its tensors are sparse, nested or of a tensor subclass.")
            return None
        written = written_arguments(call.signature.op, info, call.args, call.kwargs)
        if not written:
            return call
        # By memory, not by tensor: other arguments may be views of what the op overwrites.
        memory = {_memory_address(x) for x in written}
        copies = {id(x): x.clone() for x in tensors if _memory_address(x) in memory}
        return call.change_tensors(lambda x: copies.get(id(x), x))

    def _replace(self, call: OpCall, info: OpInfo, results: Results) -> None:
        try:
            others = self._implementation(as_computed(call, len(results.returned)), info)
            _check_shapes(results, others)
        except NotImplementedHereError as error:
            if str(error):
                self.leave(info.name, str(error))
            return
        except Exception as error:
            self.leave(info.name, first_line(error))
            return
        _overwrite(results.returned, others.returned)
        returned = set(map(id, results.returned))
        only_written = [
            pair for pair in zip(results.written, others.written, strict=False) if id(pair[0]) not in returned
        ]
        _overwrite([own for own, _ in only_written], [other for _, other in only_written])
        self.num_substituted += 1
        if runs_own_kernel(self._implementation, call.signature.op, info.name):
            self.num_own_kernel[info.name] += 1

    def _signature(self, func: Any) -> Signature | None:
        if func not in self._signatures:
            self._signatures[func] = Signature.of(func) if computes_numbers(func) else None
        return self._signatures[func]


def _check_shapes(results: Results, others: Results) -> None:
    """Raise if the results do not match, before anything is overwritten."""
    if len(results.returned) != len(others.returned):
        raise ValueError(f"the other implementation gives {len(others.returned)} results, not {len(results.returned)}.")
    for own, other in zip(results.returned, others.returned, strict=True):
        if own.shape != other.shape:
            raise ValueError(
                f"the other implementation returns a result of shape {tuple(other.shape)}, not {tuple(own.shape)}."
            )


def _overwrite(results: list[Tensor], others: list[Tensor]) -> None:
    """Overwrite tensors without changing their versions: for autograd the op has only just made them."""
    with torch_private.preserved_versions([x for x in results if not x.is_inference()]):
        for x, other in zip(results, others, strict=True):
            x.copy_(other)


def _memory_address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _is_plain(x: Tensor) -> bool:
    if type(x) not in PLAIN and type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    return x.layout is torch.strided and not (x.is_meta or x.is_nested)


OPTIONS = frozenset({"ops", "list"})


class SubstituteWarning(UserWarning):
    """The block has ended, and some of the chosen ops were not substituted, or never ran."""


def turning_on(value: str, options: Mapping[str, str]) -> contextlib.AbstractContextManager[Any]:
    """Return the block in which the ops that `options["ops"]` names run through the implementation `value`.

    With `options["list"]`, a file, nothing is substituted: the ops of the first step are written there instead, with
    how much the two implementations differ.

    Raises:
        SwitchError: the implementation does not exist, or the list of ops is invalid.
    """
    implementation = implementation_named(value)
    if "list" in options:
        return _listing_into(Path(options["list"]), value)
    return substituting(implementation, ChosenOps.from_text(options.get("ops")))


@contextlib.contextmanager
def substituting(implementation: Implementation, chosen: ChosenOps) -> Iterator[Substituter]:
    """Run the chosen ops of the block through `implementation`; everything else stays the same bit for bit.

    Compiled models run eagerly inside the block. At its end a warning says what could not be substituted.
    """
    substituter = Substituter(implementation, chosen)
    interceptor = OpInterceptor(substituter)
    with contextlib.ExitStack() as stack:
        stack.enter_context(interceptor.running())
        if isinstance(implementation, UsersFunction):
            mode = _UsersOps(implementation, chosen, substituter, interceptor)
            torch_private.push_function_mode(mode)
            stack.callback(torch_private.remove_function_mode, mode)
        yield substituter
    if lines := _warnings(substituter, chosen, interceptor):
        text = "\n  ".join(lines)
        warnings.warn(f"Not everything was substituted:\n  {text}", SubstituteWarning, stacklevel=4)


@contextlib.contextmanager
def _listing_into(file: Path, implementation: str) -> Iterator[None]:
    with listing_ops(by=implementation, on_done=lambda listing: write_listing(listing, file)):
        yield


def _warnings(substituter: Substituter, chosen: ChosenOps, interceptor: OpInterceptor) -> list[str]:
    left = [
        f"{op} was not substituted ({num}x): {substituter.reasons[op]}"
        for op, num in sorted(substituter.num_left.items())
    ]
    own = [
        f"{op} ran the same kernel in fp64 ({num}x): an error in it or in its gradient formula stays; name another "
        "implementation, substitute=module:function."
        for op, num in sorted(substituter.num_own_kernel.items())
    ]
    missing = [f"no op matched '{key}'." for key in chosen.unused]
    threads = (
        ["another thread computed something; its ops were not substituted."] if interceptor.has_other_threads else []
    )
    return left + own + missing + threads


class _UsersOps(torch_private.FunctionMode):
    """Replaces whole operators by the user's function, above autograd, so that its gradient is used too.

    The backward of an aten operator consists of other ops, which can be chosen on their own; that of an operator of
    another library is its own formula, which is not an op.
    """

    def __init__(
        self, users: UsersFunction, chosen: ChosenOps, substituter: Substituter, interceptor: OpInterceptor
    ) -> None:
        super().__init__()
        self._function = users.function
        self._chosen = chosen
        self._substituter = substituter
        self._interceptor = interceptor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the user's function instead of a chosen operator of another library."""
        op = _registered_op(func)
        if op is None or not self._chosen.has(self._interceptor.place_of(op)):
            return func(*args, **(kwargs or {}))
        with self._substituter.off():
            result = self._function(op, *args, **(kwargs or {}))
        if result is NotImplemented:
            return func(*args, **(kwargs or {}))
        self._substituter.num_substituted += 1
        return result


def _registered_op(func: Any) -> str | None:
    """Return the name of an operator of another library, `mine.gelu`; None for torch's own."""
    if isinstance(func, torch_private.OpOverload):
        func = func.overloadpacket
    if not isinstance(func, torch_private.OpOverloadPacket):
        return None
    name = str(func)  # `__name__` has no library
    return None if is_torchs_own(name) else name
