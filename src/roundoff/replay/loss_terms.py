"""The terms of a loss: those that no gradient passes, and the addends, with what they are multiplied by."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Set
from typing import Any, Literal, NamedTuple
from weakref import ref

from torch import Tensor

from roundoff.record.source_lines import Sources
from roundoff.replay.arguments import tensors_of
from roundoff.runs import LossTerm, LossTermsProbe
from roundoff.torch_private import FunctionMode, hidden_from_modes

ADDS = frozenset(
    {"add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__rsub__", "__isub__", "rsub", "sub_"}
)
"""Functions that add up two tensors."""
_JOINS = frozenset({"stack", "cat", "concat", "hstack"})
LINEAR = frozenset({
    "Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Mean", "Sum", "Stack", "Cat", "View", "UnsafeView", "Squeeze",
    "Unsqueeze", "ToCopy", "Clone", "Alias", "Select", "Expand", "ReshapeAlias",
})  # fmt: skip
"""Nodes of the graph, as autograd names them, that pass on each addend as it is, times a number."""
_PRODUCTS = frozenset({"Mul", "Div"})
_MAX_TERMS = 32
_MAX_NOTED = 2000
"""Of the sums of a step, the last ones are kept: a loss is added up at its end."""
_MAX_NODES = 20_000


class LossTermWatcher(FunctionMode):
    """Notes, in its block, the sums of single numbers of which one has no gradient."""

    def __init__(self, *, step: int, sources: Sources) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._step = step
        self._sources = sources
        self._computed: dict[int, ref[Tensor]] = {}
        """Tensors without a gradient that were computed from what has one, or from parameters."""
        self._lines: dict[Any, int] = {}
        """The lines of single numbers, by their nodes."""
        self._terms: deque[tuple[Any, LossTerm]] = deque(maxlen=_MAX_NOTED)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make the call, and note a sum."""
        result = func(*args, **(kwargs or {}))
        if self.failure is None:
            try:
                with hidden_from_modes():
                    self._see(getattr(func, "__name__", ""), (args, kwargs or {}), args, result)
            except Exception as error:
                self.failure = error  # ours: the step itself goes on
        return result

    def _see(self, name: str, given: Any, args: tuple[Any, ...], result: Any) -> None:
        if any(x.requires_grad or self._is_computed(x) for x in tensors_of(given)):
            for x in tensors_of(result):
                if not x.requires_grad:
                    self._computed[id(x)] = ref(x)
        if type(result) is not Tensor or result.grad_fn is None or (result.numel() != 1 and name not in _JOINS):
            return
        self._lines[result.grad_fn] = self._sources.here()
        parts = args[:2] if name in ADDS else args[0] if name in _JOINS and args else ()
        if name in ADDS and _cancel(*args[:2]):
            return
        for part in parts if isinstance(parts, (tuple, list)) else ():
            term = self._describe(part)
            if term is not None:
                self._terms.append((result.grad_fn, term))

    def _describe(self, part: Any) -> LossTerm | None:
        """Describe an addend that has no gradient; None of one that has, and of 0."""
        if isinstance(part, (int, float)) and not isinstance(part, bool):
            return self._term(float(part), "number") if part else None
        if type(part) is not Tensor or part.requires_grad or part.numel() != 1 or part.is_complex():
            return None
        value = float(part)
        return self._term(value, "computed" if self._is_computed(part) else "outside") if value else None

    def _term(self, value: float, kind: Literal["number", "computed", "outside"]) -> LossTerm:
        return LossTerm(value=value, kind=kind, source=self._line(self._sources.here()))

    def _line(self, number: int) -> str | None:
        return self._sources.lines[number] if number >= 0 else None

    def _is_computed(self, x: Tensor) -> bool:
        known = self._computed.get(id(x))
        return known is not None and known() is x

    def terms_of(self, loss: Tensor, *, held: Set[int], stepping: Set[int], others: Set[int]) -> LossTermsProbe:
        """Return the terms of a loss that reach no parameter of an optimizer, or none of one that steps on them.

        Args:
            loss: what backward starts from.
            held: the ids of the parameters that optimizers hold.
            stepping: those of the optimizers that step in this step.
            others: the ids of those of models of which no optimizer holds any.
        """
        inside, ends = _addends(loss.grad_fn)
        found = [term for node, term in self._terms if node in inside][-_MAX_TERMS:]
        sources = {node: self._line(self._lines.get(node, -1)) for node in ends}
        reaching = {node: _reaches(node, held=held, others=others) for node in ends}
        steps_on = {node: _reaches(node, held=stepping, others=others | held) for node in ends}
        unreached = [node for node in ends if reaching[node] is False] if any(reaching.values()) else []
        found += [LossTerm(value=None, kind="elsewhere", source=sources[node]) for node in unreached]
        if any(steps_on[node] is not False for node in ends):  # if all are, the whole loss has no effect
            unused = [node for node in ends if reaching[node] and steps_on[node] is False]
            found += [LossTerm(value=None, kind="not-stepped", source=sources[node]) for node in unused]
        return LossTermsProbe(
            step=self._step,
            loss=float(loss.detach()),
            num_terms=len(ends),
            terms=tuple(found),
            reached=tuple(source for node, source in sources.items() if steps_on[node] and source is not None),
        )


def _cancel(a: Any, b: Any = 0) -> bool:
    """Return whether a term meets its own value, as in `surrogate - surrogate.item()`: only its gradient is wanted."""
    with_graph = [x for x in (a, b) if type(x) is Tensor and x.requires_grad and x.numel() == 1]
    others = [x for x in (a, b) if not (isinstance(x, Tensor) and (x.requires_grad or x.numel() != 1))]
    if len(with_graph) != 1 or len(others) != 1:
        return False
    value, other = float(with_graph[0].detach()), float(others[0])
    return bool(value) and abs(abs(value) - abs(other)) <= 1e-6 * abs(value)


def _addends(root: Any) -> tuple[set[Any], list[Any]]:
    """Return the nodes that only add up and scale, from the loss on, and those of the terms that they add up."""
    inside: set[Any] = set()
    others: list[Any] = []
    waiting = [root]
    while waiting and len(inside) < _MAX_TERMS * 8:
        node = waiting.pop()
        if node is None or node in inside:
            continue
        before = [function for function, _ in node.next_functions if function is not None]
        name = name_of_node(node)
        if name in LINEAR and not (name in _PRODUCTS and len(before) > 1):
            inside.add(node)
            waiting.extend(before)
        elif node not in others:
            others.append(node)
    return inside, others[:_MAX_TERMS]


def name_of_node(node: Any) -> str:
    """Return what a node of the graph differentiates: `Mul`, `Sum`."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _reaches(node: Any, *, held: Container[int], others: Container[int]) -> bool | None:
    """Return whether a term reaches a parameter of an optimizer, and if not, whether all it reaches is another model's.

    None if that is unknown: a leaf may be a part of a parameter, or a copy of one, as in sharded and scripted models.
    """
    reached = False
    for num, leaf in enumerate(_leaves(node)):
        if num > _MAX_NODES or (leaf is not None and id(leaf) not in held and id(leaf) not in others):
            return None
        if leaf is not None:
            reached = True
            if id(leaf) in held:
                return True
    return False if reached else None


def _leaves(node: Any) -> Iterator[Tensor | None]:
    """Yield the leaf of each node below one; None for those that are no leaf."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        yield getattr(one, "variable", None)
        for function, _ in one.next_functions:
            if function is not None and function not in seen:
                seen.add(function)
                waiting.append(function)


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
