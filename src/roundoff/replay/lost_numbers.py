"""Sees whole numbers become others: integers that wrap around, and places that a narrow float rounds together.

Called with each torch function, in a replay or while the loop itself computes. Arithmetic on narrow integers is done
once more in int64; a counter that is cast, or that a narrow float holds, is followed along its axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from roundoff.record.loop.sites import LOOP
from roundoff.replay.arguments import tensors_of
from roundoff.runs import LostNumbers
from roundoff.torch_private import hidden_from_modes

_MAX_FOUND = 16
_MAX_FOLLOWED = 1000
_MAX_ELEMENTS = 2**22
_MAX_FACTOR = 2**14
"""Products of matrices of integers are slow."""
_PRODUCTS = ("matmul", "__matmul__", "mm", "bmm", "mv", "dot")
_NARROW_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_READABLE = (*_NARROW_INTEGERS, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LARGEST_EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11, torch.float32: 2**24}
"""Up to here the format represents every integer."""
_ARITHMETIC = frozenset({
    "add", "sub", "subtract", "rsub", "mul", "multiply", "neg", "negative", "abs", "absolute", "square", "pow",
    "add_", "sub_", "mul_", "pow_", "neg_", "matmul", "mm", "bmm", "dot", "mv", "prod", "sum", "cumsum", "cumprod",
    "addcmul", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__",
    "__pow__", "__rpow__", "__ipow__", "__neg__", "__abs__", "__matmul__", "square_",
})  # fmt: skip
_CASTS = frozenset({
    "to", "type", "type_as", "float", "half", "bfloat16", "byte", "char", "short", "int", "_to_copy"
})  # fmt: skip
_COUNTS = frozenset({
    "arange", "range", "linspace", "cumsum", "outer", "ger", "matmul", "bmm", "mm", "einsum", "mul", "__mul__",
    "__rmul__", "__matmul__", "add", "__add__", "__radd__",
})  # fmt: skip
"""Functions whose result may count places in a narrow format from the beginning."""
_ANGLES = frozenset({"sin", "cos", "sin_", "cos_"})
_REMAINDERS = frozenset({"remainder", "fmod", "__mod__", "remainder_", "fmod_", "__imod__"})
_COARSE = 0.1
"""Numbers that are this part of a period apart leave nothing of where in it they are."""
_MODULAR = frozenset({
    "remainder", "fmod", "__mod__", "__rmod__", "__imod__", "remainder_", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "bitwise_right_shift", "bitwise_left_shift", "__and__", "__or__", "__xor__", "__invert__",
    "__rshift__", "__lshift__", "__iand__", "__ixor__", "__ior__", "__irshift__", "__ilshift__", "where",
})  # fmt: skip
"""Functions whose operands may wrap on purpose, as those of a hash; or of which not every number is used."""
_SUMS_IN_PLACE = frozenset({"add_", "__iadd__"})
_MAX_SUM_ELEMENTS = 2**16
_STAGNANT = 0.5
"""A sum stands still if this share of what was added to it has no effect."""
_NAMES = _REMAINDERS | _ARITHMETIC | _CASTS | _COUNTS | _ANGLES | _MODULAR


@dataclass(slots=True)
class _Followed:
    """A tensor with lost numbers, until it is known whether they matter."""

    tensor: ref[Tensor]
    found: LostNumbers


@dataclass(slots=True)
class _SumBefore:
    """A sum before something was added to it in place."""

    sum: Tensor


class LostNumbersFinder:
    """Looks at calls of torch functions.

    Args:
        waits: look at tensors on accelerators, too, which means to wait for them.
        only_sums: look at nothing but running sums, which stand still late in a training.
    """

    def __init__(self, *, waits: bool, only_sums: bool = False) -> None:
        self.failure: Exception | None = None
        """An error of ours, after which nothing is looked at any more."""
        self._waits = waits
        self._wanted = _SUMS_IN_PLACE if only_sums else _NAMES
        self._found: list[LostNumbers] = []
        self._followed: dict[int, _Followed] = {}

    def wants(self, name: str) -> bool:
        """Return whether a call of a function is worth looking at."""
        return name in self._wanted or bool(self._followed)

    def before(self, name: str, args: tuple[Any, ...]) -> Any:
        """Look at the arguments of a function that is about to be called; `after` is to be given the answer."""
        if self.failure is not None:
            return None
        if name in _SUMS_IN_PLACE and _is_running_sum(args[0] if args else None):
            return self._guard(lambda: _SumBefore(args[0].detach().clone()) if self._can_read(args[0]) else None)
        return self._guard(lambda: self._widen(name, args))

    def _can_read(self, x: Tensor) -> bool:
        return self._waits or x.is_cpu

    def after(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        wide: Any,
        place: Callable[[], tuple[str, str | None]],
    ) -> None:
        """Look at what a function returned.

        Args:
            function: what was called.
            args: its arguments.
            kwargs: those given by name.
            result: what it returned.
            wide: the answer of `before`.
            place: returns the site and source line of the call; called only if numbers are lost.
        """
        if self.failure is None:
            name = getattr(function, "__name__", "")
            self._guard(lambda: self._look(function, name, args, kwargs, result, wide, place))

    def _guard(self, look: Callable[[], Any]) -> Any:
        try:
            with hidden_from_modes(), torch.no_grad():
                return look()
        except Exception as error:
            self.failure = error
            return None

    def _look(
        self, function: Any, name: str, args: Any, kwargs: Any, result: Any, wide: Any, place: Callable[[], Any]
    ) -> None:
        if self._followed:
            self._follow(name, args, kwargs, result)
        lost = self._find(function, name, args, kwargs, result, wide)
        if lost is not None:
            site, source = place()
            self._note(replace(lost, site=site, source=source), result)

    def _widen(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the arguments in int64 where narrow integers are computed with: the call may write into them."""
        if name not in _ARITHMETIC or not args:
            return None
        tensors = [x for x in args if isinstance(x, Tensor)]
        if not any(x.dtype in _NARROW_INTEGERS for x in tensors) or not all(map(_is_small_and_whole, tensors)):
            return None
        if not self._waits and not all(x.is_cpu for x in tensors):
            return None
        if name in _PRODUCTS and any(x.numel() > _MAX_FACTOR for x in tensors):
            return None
        return tuple(x.long() if isinstance(x, Tensor) else x for x in args)

    def _find(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, wide: Any
    ) -> LostNumbers | None:
        """Return what a call has lost, without its place."""
        if not _is_plain(result) or not 0 < result.numel() <= _MAX_ELEMENTS or not (self._waits or result.is_cpu):
            return None
        if isinstance(wide, _SumBefore):
            return _find_stagnant(name, wide.sum, args[1] if len(args) > 1 else None, kwargs.get("alpha", 1), result)
        if wide is not None and "out" not in kwargs:
            copies = [x.clone() if isinstance(x, Tensor) else x for x in wide]  # the call may write into them
            exact = function(*copies, **kwargs)
            return _find_wrapped(name, wide, exact, result) if isinstance(exact, Tensor) else None
        if name in _CASTS and args and _is_plain(args[0]):
            return _lost_in_cast(name, args[0], result)
        if name in _COUNTS:
            return _lost_count(name, result)
        return _lost_angles(name, args)

    def _note(self, lost: LostNumbers, result: Tensor) -> None:
        """Keep what was lost; if it may be on purpose, until the script has shown that it is not."""
        if lost.is_angle or lost.kind == "stagnant":
            self._found.append(lost)
        else:
            self._followed[id(result)] = _Followed(ref(result), lost)

    def take(self) -> list[LostNumbers]:
        """Return what was lost since the last time, each place once."""
        followed = [each.found for each in self._followed.values()]
        # what is rounded and counts nothing is a fault only as an angle
        certain = [found for found in followed if found.kind == "wrapped" or found.is_counter]
        found = {
            (lost.kind, lost.function, lost.source, lost.site): lost for lost in reversed([*self._found, *certain])
        }
        self._found, self._followed = [], {}
        return list(reversed(found.values()))[:_MAX_FOUND]

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Drop what wraps on purpose; keep what becomes an angle; follow the rest."""
        for x in tensors_of((args, kwargs)):
            known = self._followed.get(id(x))
            if known is None or known.tensor() is not x:
                continue
            if name in _MODULAR and known.found.kind == "wrapped" and not x.is_floating_point():
                self._followed = {key: each for key, each in self._followed.items() if each.found is not known.found}
            elif name in _ANGLES:
                self._found.append(replace(known.found, is_angle=True))
            elif isinstance(result, Tensor) and len(self._followed) < _MAX_FOLLOWED:
                self._followed.setdefault(id(result), _Followed(ref(result), known.found))


def _is_plain(x: Any) -> bool:
    """Return whether this is a tensor whose numbers are all here, in a dtype with which everything can be computed."""
    return type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided and x.dtype in _READABLE


def _is_small_and_whole(x: Tensor) -> bool:
    return _is_plain(x) and not x.is_floating_point() and x.numel() <= _MAX_ELEMENTS


def _is_running_sum(x: Any) -> bool:
    """Say whether this may be a sum that is kept from step to step: no part of a graph, in a format that rounds."""
    is_sum = _is_plain(x) and x.is_floating_point() and not x.requires_grad and 0 < x.numel() <= _MAX_SUM_ELEMENTS
    return is_sum and x.dtype in _LARGEST_EXACT


def _find_stagnant(name: str, before: Tensor, added: Any, alpha: Any, result: Tensor) -> LostNumbers | None:
    """Find a sum to which something is added without effect; in fp32, only whole numbers count."""
    if not isinstance(added, (int, float, Tensor)) or (isinstance(added, Tensor) and not _is_plain(added)):
        return None
    more = torch.as_tensor(added).detach().cpu().double() * float(alpha)
    more = more.expand_as(before) if more.dim() <= before.dim() else before.new_zeros(before.shape).double()
    old, new = _on_host(before), _on_host(result)
    counts = (more != 0) & more.isfinite() & old.isfinite() & (old.abs() > more.abs())
    if before.dtype is torch.float32:
        counts &= (more == more.round()) & (old == old.round())
    lost = counts & (old == new)
    num_lost, num_counted = int(lost.sum()), int(counts.sum())
    if not num_lost or num_lost < _STAGNANT * int((more != 0).sum()) or not num_counted:
        return None
    one, other, got = (float(x[lost][0]) for x in (old, more, new))
    found = _rounded_numbers(name, result, exact=one + other, got=got, num_lost=num_lost)
    return replace(found, kind="stagnant", given=(one, other))


def _find_wrapped(name: str, given: Sequence[Any], exact: Tensor, result: Tensor) -> LostNumbers | None:
    """Compare a result of narrow integers with the one in int64."""
    if result.dtype not in _NARROW_INTEGERS or exact.shape != result.shape or exact.dtype is not torch.int64:
        return None
    lost = exact != result.long()
    num_lost = int(lost.sum())
    if not num_lost:
        return None
    place = int(lost.flatten().nonzero()[0])
    operands: list[float] = []
    if name not in (*_PRODUCTS, "sum", "prod", "cumsum", "cumprod"):
        for x in given[:2]:
            at = x.expand_as(exact).flatten()[place] if isinstance(x, Tensor) else x
            operands += [float(at)] if isinstance(at, (int, float, Tensor)) else []
    return LostNumbers(
        step=0,
        kind="wrapped",
        function=name,
        site=LOOP,
        dtype=_name(result.dtype),
        given=tuple(operands),
        exact=float(exact.flatten()[place]),
        result=float(result.flatten()[place]),
        num_lost=num_lost,
        num_elements=result.numel(),
    )


def _lost_in_cast(name: str, x: Tensor, result: Tensor) -> LostNumbers | None:
    """Find numbers that do not fit into narrower integers, and counters that a float rounds together."""
    if x.shape != result.shape or x.dtype == result.dtype:
        return None
    if result.dtype in _NARROW_INTEGERS:
        if not x.is_floating_point() and result.dtype in (torch.uint8, torch.int8):
            return None  # the lowest byte may be what is wanted
        exact = _on_host(x).trunc()
        exact = torch.where(exact.isfinite() & (exact.abs() < 2**62), exact, 0.0).long()
        return _find_wrapped(name, (exact,), exact, torch.where(x.isfinite(), result, 0).cpu())
    limit = _LARGEST_EXACT.get(result.dtype)
    if limit is None or (x.is_floating_point() and x.element_size() <= result.element_size()):
        return None
    if not x.is_floating_point() and torch.iinfo(x.dtype).max <= limit:
        return None
    if not float(x.detach().abs().max()) > limit:
        return None
    exact, rounded = _on_host(x), _on_host(result)
    if not bool((exact == exact.round()).all()):
        return None
    for axis in range(x.dim()):
        counts, gaps = exact.diff(dim=axis), rounded.diff(dim=axis)
        if counts.numel() and bool((counts > 0).all()) and bool((gaps == 0).any()):
            later = [float(y.narrow(axis, 1, x.shape[axis] - 1)[gaps == 0][0]) for y in (exact, rounded)]
            lost = _rounded_numbers(name, result, exact=later[0], got=later[1], num_lost=int((gaps == 0).sum()))
            return replace(lost, is_counter=True)
    wrong = exact != rounded
    if x.is_floating_point() or result.dtype is torch.float32 or not bool(wrong.any()):
        return None
    first, got = float(exact[wrong][0]), float(rounded[wrong][0])
    return _rounded_numbers(name, result, exact=first, got=got, num_lost=int(wrong.sum()))


def _lost_count(name: str, result: Tensor) -> LostNumbers | None:
    """Find a counter in a narrow float: it counts one by one as far as the format can, and then repeats numbers."""
    limit = _LARGEST_EXACT.get(result.dtype)
    if limit is None or result.dtype is torch.float32:
        return None
    for axis, size in enumerate(result.shape):
        if size <= limit + 1:
            continue
        line = _on_host(result.movedim(axis, 0).reshape(size, -1)[:, 0])
        start = float(line[0])
        if start not in (0.0, 1.0) or not torch.equal(line[: limit - 1], start + torch.arange(limit - 1.0).to(line)):
            continue
        repeats = line.diff() == 0
        if bool(repeats.any()):
            place = int(repeats.nonzero()[0]) + 1
            num_lost = int(repeats.sum())
            lost = _rounded_numbers(name, result, exact=start + place, got=float(line[place]), num_lost=num_lost)
            return replace(lost, num_elements=size, is_counter=True)
    return None


def _lost_angles(name: str, args: tuple[Any, ...]) -> LostNumbers | None:
    """Find sines and cosines of numbers whose neighbours in their format are a radian or more away."""
    x: Any = args[0] if name in _ANGLES and args else None
    if name in _REMAINDERS and len(args) == 2:
        return _lost_remainder(name, *args)
    if not _is_plain(x) or x.dtype not in _LARGEST_EXACT or not 0 < x.numel() <= _MAX_ELEMENTS:
        return None
    sizes, limit = x.detach().abs(), _LARGEST_EXACT[x.dtype]
    largest = float(sizes.max())
    if not limit <= largest < float("inf"):
        return None
    lost = _rounded_numbers(name, x, exact=largest, got=largest, num_lost=int((sizes >= limit).sum()))
    return replace(lost, is_angle=True)


def _lost_remainder(name: str, x: Any, divisor: Any) -> LostNumbers | None:
    """Find remainders of numbers that their format cannot tell apart within the divisor, such as times in fp32."""
    is_read = _is_plain(x) and x.dtype in _LARGEST_EXACT and 0 < x.numel() <= _MAX_ELEMENTS
    if not is_read or not isinstance(divisor, (int, float)) or not divisor:
        return None
    sizes, exact = x.detach().abs(), _LARGEST_EXACT[x.dtype]
    largest, limit = float(sizes.max()), _COARSE * exact * abs(divisor)
    if not limit <= largest < float("inf") or largest <= exact:
        return None
    lost = _rounded_numbers(name, x, exact=largest, got=largest, num_lost=int((sizes >= limit).sum()))
    return replace(lost, is_angle=True, given=(largest, float(divisor)))


def _on_host(x: Tensor) -> Tensor:
    """Return the numbers in fp64, which not every accelerator has."""
    return x.detach().cpu().double()


def _rounded_numbers(name: str, result: Tensor, *, exact: float, got: float, num_lost: int) -> LostNumbers:
    return LostNumbers(
        step=0,
        kind="rounded",
        function=name,
        site=LOOP,
        dtype=_name(result.dtype),
        exact=exact,
        result=got,
        num_lost=num_lost,
        num_elements=result.numel(),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def lost_in_tensor(x: Tensor, name: str) -> LostNumbers | None:
    """Find a counter in a tensor that was there already, in a format that rounds it."""
    is_read = _is_plain(x) and not x.requires_grad and 0 < x.numel() <= _MAX_ELEMENTS
    return _lost_count(name, x) if is_read else None
