"""The addends of a loss in a forward that is played again: values, lines, and what they are multiplied by."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from roundoff.record.source_lines import Sources
from roundoff.replay.loss_terms import ADDS, LINEAR, name_of_node
from roundoff.torch_private import FunctionMode, hidden_from_modes

_TIMES = frozenset({"mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply"})
_OVER = frozenset({"div", "__truediv__", "__itruediv__", "div_", "divide", "true_divide"})
_MAX_ADDENDS = 16


class Addend(NamedTuple):
    """One addend of a loss."""

    value: float
    factor: float
    """What the numbers that it adds up are multiplied by: 1/32 where a sum is divided by 32."""
    source: str | None


class AddendWatcher(FunctionMode):
    """Notes, in its block, which single numbers are added up, and which tensors are multiplied by a number."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._sources = sources
        self._sums: dict[Any, list[tuple[Any, float]]] = {}
        """The nodes and values of two addends, by the node of their sum."""
        self._factors: dict[Any, float] = {}
        self._lines: dict[Any, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make the call, and note a sum or a product."""
        name, addends = getattr(func, "__name__", ""), []
        if self.failure is None and name in ADDS:
            addends = self._attempt(lambda: [_addend(x) for x in args[:2] if _is_number_with_graph(x)])
        result = func(*args, **(kwargs or {}))
        if self.failure is None and type(result) is Tensor and result.grad_fn is not None:
            self._attempt(lambda: self._see(name, args, addends, result))
        return result

    def _attempt(self, look: Any) -> Any:
        try:
            with hidden_from_modes():
                return look()
        except Exception as error:
            self.failure = error  # ours: the step itself goes on
            return []

    def _see(self, name: str, args: tuple[Any, ...], addends: list[tuple[Any, float]], result: Tensor) -> None:
        if result.numel() == 1:
            place = self._sources.here()
            if place >= 0:
                self._lines[result.grad_fn] = self._sources.lines[place]
            if len(addends) == 2:
                self._sums[result.grad_fn] = addends
        if name in _TIMES or name in _OVER:
            number = next((x for x in args[:2] if _is_constant(x)), None)
            if number is not None and (name in _TIMES or number is not args[0]):
                value = abs(float(number))
                self._factors[result.grad_fn] = value if name in _TIMES else 1 / value if value else 0.0

    def addends_of(self, loss: Tensor) -> list[Addend]:
        """Return what a loss adds up; nothing if it is no sum."""
        node: Any = loss.grad_fn
        while node is not None and node not in self._sums:
            node = _only_before(node) if name_of_node(node) in LINEAR else None
        waiting = list(self._sums.get(node, ()))
        found: list[Addend] = []
        while waiting and len(found) < _MAX_ADDENDS:
            node, value = waiting.pop(0)
            if node in self._sums:
                waiting = [*self._sums[node], *waiting]
            else:
                found.append(Addend(value, self._factor_of(node), self._lines.get(node)))
        return found

    def _factor_of(self, node: Any) -> float:
        factor = 1.0
        while node is not None and (node in self._factors or name_of_node(node) in LINEAR):
            factor *= self._factors.get(node, 1.0)
            node = _only_before(node)
        return factor


def _only_before(node: Any) -> Any:
    """Return the node before one, if there is a single one."""
    before = [function for function, _ in node.next_functions if function is not None]
    return before[0] if len(before) == 1 else None


def _is_number_with_graph(x: Any) -> bool:
    return type(x) is Tensor and x.grad_fn is not None and x.numel() == 1


def _addend(x: Tensor) -> tuple[Any, float]:
    return x.grad_fn, float(x.detach())


def _is_constant(x: Any) -> bool:
    if isinstance(x, (int, float)):
        return True
    return type(x) is Tensor and not x.requires_grad and x.numel() == 1 and not x.is_complex()
