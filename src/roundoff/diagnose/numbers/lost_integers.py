"""Whole numbers that become others: integers that wrap around, and places that a narrow float rounds together."""

from __future__ import annotations

import math
from functools import partial

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, on_first_rank, rule
from roundoff.diagnose.wording import FORMATS, eps_of
from roundoff.runs import Finding, LostNumbers, Run

_LARGEST_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}
_RANGES = {"uint8": "0 to 255", "int8": "-128 to 127", "int16": "-32768 to 32767", "int32": "-2147483648 to 2147483647"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "pow": "**", "matmul": "@"}
_looked = needs.some(
    lambda run: any(run.inputs(rank=rank) or run.criteria(rank=rank) for rank in run.ranks), "no step was looked at"
)


@rule(
    Code(
        name="integer-wraparound",
        means="Arithmetic on integers of 8, 16 or 32 bits leaves their range and starts again at the other end: in "
        "uint8, 200 + 100 is 44, and 3 - 5 is 254.",
        fix="Convert before computing: `x.float()` for pictures and sound, `x.long()` for indices.",
    ),
    order=505,
    checks="integers that wrap around",
    needs=[_looked],
)
@on_first_rank
def wrapped_integers(run: Run, rank: int) -> Finding | None:
    """Find arithmetic on narrow integers in the first steps that gives other numbers than in int64.

    Results that go into a remainder or a bitwise function may wrap on purpose, and are left out. What numpy or the
    workers of a DataLoader compute is not seen.
    """
    found = next((lost for lost in run.lost_numbers(rank=rank) if lost.kind == "wrapped"), None)
    if found is None:
        return None
    wide = "long()" if found.dtype == "int32" else "float()"
    return error(
        rule="integer-wraparound",
        confidence=0.95,
        step=found.step,
        rank=rank,
        phase="forward",
        site=found.site,
        source=found.source,
        title=f"{found.dtype} numbers wrap around in {_bare(found.function)}",
        why=f"{found.dtype} holds {_RANGES[found.dtype]}: {_calculation(found)} became {found.result:.0f}; "
        f"{found.num_lost} of {found.num_elements} results are wrong",
        fix=f"convert before computing, not after: x.{wide}",
        evidence=(
            {"function": found.function, "given": list(found.given), "exact": found.exact, "result": found.result},
        ),
    )


def _calculation(lost: LostNumbers) -> str:
    exact, sign = f"{lost.exact or 0.0:.0f}", _SIGNS.get(_bare(lost.function))
    if len(lost.given) == 2 and sign is not None:
        one, other = lost.given[::-1] if lost.function in ("rsub", "__rsub__", "__rpow__") else lost.given
        return f"{one:.0f} {sign} {other:.0f} = {exact}"
    return exact


def _bare(function: str) -> str:
    """Return the plain name of a function: `sub` of `__rsub__`."""
    bare = function.strip("_")
    for mark in ("r", "i"):
        if function.startswith(f"__{mark}") and bare[1:] in _SIGNS:
            return bare[1:]
    return {"rsub": "sub", "subtract": "sub", "multiply": "mul"}.get(bare, bare)


@rule(
    Code(
        name="positions-rounded",
        means="Positions, angles or times are computed in a format that cannot count so far: bf16 holds every integer "
        "only up to 256, fp16 up to 2048. Different places become the same place.",
        fix="Compute positions and angles in fp32, with autocast off around them, and cast the sines and cosines.",
    ),
    order=925,
    checks="positions, angles and times in a narrow float format",
    needs=[_looked],
)
@on_first_rank
def rounded_positions(run: Run, rank: int) -> Finding | None:
    """Find numbers that grow along an axis and repeat after rounding, and large angles in a narrow format."""
    rounded = [lost for lost in run.lost_numbers(rank=rank) if lost.kind == "rounded"]
    counters = [lost for lost in rounded if lost.is_counter]
    found = counters or [lost for lost in rounded if lost.is_angle]
    return _rounded_finding(found[0], rank) if found else None


def _rounded_finding(lost: LostNumbers, rank: int) -> Finding:
    name, limit = FORMATS[lost.dtype], _LARGEST_EXACT[lost.dtype]
    found = partial(error, rule="positions-rounded", confidence=0.95, step=lost.step, rank=rank, phase="forward")
    evidence = ({"function": lost.function, "first": lost.exact, "result": lost.result, "num_lost": lost.num_lost},)
    if lost.is_counter or lost.exact != lost.result:
        title = f"positions are rounded to {name}, so that different ones become the same"
        seen = f"{lost.exact or 0.0:.0f}, the first position that is lost, becomes {lost.result or 0.0:.0f}"
    elif len(lost.given) == 2:
        title = f"times or positions in {name} are farther apart than the period asks for"
        gap = 2.0 ** math.floor(math.log2(lost.given[0])) * eps_of(lost.dtype)
        seen = (
            f"the remainder by {lost.given[1]:g} is taken of numbers up to {lost.given[0]:.10g}, where neighbours in "
            f"{name} are {gap:g} apart"
        )
    else:
        title = f"angles are rounded to {name}, by a radian or more"
        seen = f"{lost.function} is taken of numbers up to {lost.exact or 0.0:.0f}"
    return found(
        site=lost.site,
        source=lost.source,
        title=title,
        why=f"{name} represents every integer only up to {limit}; in {lost.function}, {seen}; {lost.num_lost} of "
        f"{lost.num_elements} numbers are affected",
        fix="compute times, positions and angles in fp64 or integers, or subtract their origin first; then cast"
        if lost.dtype == "float32"
        else "compute positions and angles in fp32 (x.float(), with torch.autocast off around them), and cast only "
        "their sines and cosines",
        evidence=evidence,
    )
