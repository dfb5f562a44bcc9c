"""The finding about a bad value that the loop computed itself, before the model's forward: no data contained it."""

from __future__ import annotations

from roundoff.diagnose.nonfinite.bad_step import BadStep, spread_of
from roundoff.diagnose.rule import error
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, LoopValueProbe, Run
from roundoff.runs.files.plain_json import object_of
from roundoff.words import is_or_are, plural

_SPREADS = ("std", "var", "std_mean", "var_mean")
_FIXES = {
    "div": "keep the divisor away from 0: add an eps to it, or clamp it",
    "log": "clamp the argument of log, or add an eps to it",
    "std": "leave out groups of one number, or use correction=0 and an eps",
}


def loop_value_finding(run: Run, bad: BadStep) -> Finding | None:
    """Return which function of the loop made the value that the model, or the loss, was given; None if none did."""
    made = [probe for probe in run.probes(LoopValueProbe) if probe.step == bad.step]
    place = bad.place
    if not made or not _came_from_outside(bad):
        return None
    value = made[0]
    num_bad, num = value.num_bad, value.num_elements
    share = f"{num_bad} of {plural(num, 'result')} {is_or_are(num_bad)} not finite"
    is_overflow = not value.num_nan and (value.function == "exp" or (value.function == "pow" and not _num_zero(value)))
    return error(
        rule="overflow" if is_overflow else "domain-error",
        confidence=0.95 if place is not None else 0.7,
        step=bad.step,
        rank=bad.rank,
        phase="forward",
        site="<loop>",
        op=value.function,
        source=value.source,
        title=_title(value, is_overflow=is_overflow),
        why=f"{_describe_arguments(value)}{share}. The script computes it before the model sees the batch: the data "
        f"itself is finite" + (f"\n{spread_of(bad, place)}" if place is not None else ""),
        fix=_fix(value),
        evidence=(object_of(value),),
    )


def _came_from_outside(bad: BadStep) -> bool:
    """Say whether the bad value was there before the replayed part of the step began."""
    place = bad.place
    if place is None or place.kind == "input":
        return True
    return place.kind == "op" and any(x.num_neginf for x in place.inputs)


def _title(value: LoopValueProbe, *, is_overflow: bool) -> str:
    name = value.function
    if is_overflow:
        return f"{name} overflowed in the script's own code"
    if name == "div" and _num_zero(value):
        return "division by zero in the script's own code"
    if name in _SPREADS and not _num_zero(value) and _num_given(value) == value.num_elements:
        return f"{name} of one number in the script's own code"
    if name == "mean":
        return "mean of no numbers in the script's own code"
    smallest = min((argument.min for argument in value.arguments), default=0.0)
    what = "a negative number" if smallest < 0 else "0"
    return f"{name} of {what} in the script's own code"


def _num_given(value: LoopValueProbe) -> int:
    return max((argument.num_elements for argument in value.arguments), default=0)


def _num_zero(value: LoopValueProbe) -> int:
    return value.arguments[-1].num_zero if value.arguments else 0


def _describe_arguments(value: LoopValueProbe) -> str:
    if not value.arguments:
        return ""
    last = value.arguments[-1]
    if last.num_zero:
        noun = "divisor" if value.function == "div" else "argument"
        return f"{last.num_zero} of {plural(last.num_elements, noun)} {is_or_are(last.num_zero)} 0; "
    if value.function in _SPREADS:
        return f"it was given {plural(last.num_elements, 'number')} for {plural(value.num_elements, 'result')}; "
    return f"its arguments are between {format_short(last.min)} and {format_short(last.max)}; "


def _fix(value: LoopValueProbe) -> str:
    at = f" ({value.source})" if value.source else ""
    key = "std" if value.function in _SPREADS else value.function[:3]
    return f"{_FIXES.get(key, f'keep the argument of {value.function} inside its domain')}{at}"
