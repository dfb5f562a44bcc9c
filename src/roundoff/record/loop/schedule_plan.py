"""How long a learning-rate schedule is meant to be, read from the scheduler without stepping it."""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_DENSE, _FARTHEST, _STRIDE = 1000, 1_000_000, 1.05
"""A function is asked about each of so many steps, then about ever fewer, up to the farthest."""
_OVER = 0.01
"""A rate below this fraction of the highest is that of a schedule which is over."""
_LENGTHS = ("T_max", "total_steps", "total_iters")
_MAX_DEPTH = 3
_FUNCTIONS = frozenset({
    "abs", "bool", "float", "int", "len", "max", "min", "pow", "range", "round", "sum",
    "math", "ceil", "cos", "exp", "floor", "log", "log2", "log10", "pi", "sin", "sqrt", "tanh",
})  # fmt: skip
"""Names that a function may use and still change nothing."""
_WRITES = ("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF", "STORE_NAME", "DELETE_", "IMPORT_", "YIELD_")


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What a schedule is going to do, in its own steps; None where that is not known."""

    length: int | None = None
    """After so many the rate has come down to (almost) 0, or to the lowest it is set to."""
    peak: int | None = None
    """After so many it is highest, if it rises at first."""


NO_PLAN = SchedulePlan()


def plan_of(scheduler: Any) -> SchedulePlan:
    """Return how long a schedule is: from its settings or, of a function that changes nothing, by asking it."""
    try:
        if getattr(scheduler, "_schedulers", None):
            return _plan_of_parts(scheduler)
        if (asked := getattr(scheduler, "lr_lambdas", None)) is not None:
            return _plan_of_function(asked[0]) if changes_nothing(asked[0]) else NO_PLAN
        rises = getattr(scheduler, "end_factor", 0.0) > getattr(scheduler, "start_factor", 1.0)
        length = next((value for name in _LENGTHS if isinstance(value := getattr(scheduler, name, None), int)), None)
        if length is None or hasattr(scheduler, "factor"):  # a constant factor, which does not come down
            return NO_PLAN
        if rises:
            return SchedulePlan(peak=length)
        phases = getattr(scheduler, "_schedule_phases", None)  # of one cycle, whose rate rises first
        return SchedulePlan(length=length, peak=round(phases[0]["end_step"]) if phases else None)
    except Exception:  # whatever a user's scheduler answers
        return NO_PLAN


def _plan_of_parts(scheduler: Any) -> SchedulePlan:
    milestones = getattr(scheduler, "_milestones", None)
    if not milestones or len(scheduler._schedulers) != len(milestones) + 1:
        return NO_PLAN
    first, last = plan_of(scheduler._schedulers[0]), plan_of(scheduler._schedulers[-1])
    length = None if last.length is None else milestones[-1] + last.length
    return SchedulePlan(length=length, peak=None if first.peak is None else min(first.peak, milestones[0]))


def _plan_of_function(function: Callable[[int], float]) -> SchedulePlan:
    later = itertools.takewhile(
        lambda step: step <= _FARTHEST,
        itertools.accumulate(itertools.repeat(_STRIDE), lambda s, by: int(s * by), initial=_DENSE),
    )
    steps = [*range(_DENSE), *later]
    factors = [float(function(step)) for step in steps]
    highest = max(factors)
    peak = factors.index(highest)
    over = next((place for place in range(peak + 1, len(steps)) if factors[place] <= _OVER * highest), None)
    length = None
    if over is not None:
        length = _first_where(lambda step: float(function(step)) <= _OVER * highest, steps[over - 1], steps[over])
    return SchedulePlan(length=length, peak=steps[peak] or None)


def _first_where(is_so: Callable[[int], bool], no: int, yes: int) -> int:
    while yes - no > 1:
        middle = (no + yes) // 2
        no, yes = (no, middle) if is_so(middle) else (middle, yes)
    return yes


def changes_nothing(function: Any, *, depth: int = _MAX_DEPTH) -> bool:
    """Say whether a function can be called by someone else without anyone noticing: it computes with numbers only."""
    if isinstance(function, functools.partial):
        values = (*function.args, *function.keywords.values())
        return changes_nothing(function.func, depth=depth) and all(_is_plain(value, depth) for value in values)
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    if any(each.opname.startswith(_WRITES) for each in dis.get_instructions(code)):
        return False
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    used = [
        function.__globals__.get(name, getattr(builtins, name, None))
        for name in code.co_names
        if name not in _FUNCTIONS
    ]
    consts = [value for value in code.co_consts if isinstance(value, types.CodeType)]
    return not consts and all(_is_plain(value, depth) for value in (*cells, *used, *(function.__defaults__ or ())))


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, (int, float)):
        return True
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (int, float)) for item in value)
    return depth > 0 and changes_nothing(value, depth=depth - 1)
