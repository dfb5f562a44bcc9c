"""Whether an op is undefined for its input or only overflowed its format, in the words of a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.diagnose.nonfinite.origin import OriginPlace
from roundoff.diagnose.wording import format_short
from roundoff.runs import Event, Origin
from roundoff.runs.records.step_ops import bare_name
from roundoff.words import is_or_are, plural

_HAVE_A_DOMAIN = ("log", "sqrt", "pow", "acos", "asin", "atanh", "softmax")
_DIVIDE = ("div", "reciprocal", "rsqrt")
_HAVE_GRADIENTS_WITH_A_DOMAIN = ("sqrt", "norm", "cdist", "log", "acos", "asin", "atan2", "std", "var", "div", "pow")
"""The most likely first: in a square root of squares, it is the root that has no gradient at 0."""


def left_its_domain(place: OriginPlace, origin: Origin | None) -> bool:
    """Distinguish log(-1) and 0/0, which no format can represent, from results that are only too large for theirs.

    The op run again in fp64 decides; without that, its inputs do. An infinite exp is an overflow even if it overflows
    in fp64 too.
    """
    bare = bare_name(place.op)
    if origin is not None and origin.is_finite_in_fp64 is not None:
        return not origin.is_finite_in_fp64 and (place.bad.num_nan > 0 or _is_singular(bare, place.inputs))
    if _divides(bare):
        return place.bad.num_nan > 0 or not place.inputs or place.inputs[-1].num_zero > 0
    if "log" in bare or "nll_loss" in bare:
        return True
    return place.bad.num_nan > 0 and any(word in bare for word in _HAVE_A_DOMAIN)


def _is_singular(bare: str, inputs: Sequence[Event]) -> bool:
    """Say whether the op can give infinity for small inputs: 1/0, log(0), 0 ** -0.5."""
    if "log" in bare or "nll_loss" in bare or _divides(bare):
        return True
    return "pow" in bare and any(x.num_zero for x in inputs)


def domain_title(place: OriginPlace, origin: Origin | None, forward_ops: Sequence[str], *, verb: str) -> str:
    """Return what the op was asked to compute, such as a division by zero in the backward of sqrt."""
    bare, inputs = bare_name(place.op), place.inputs
    gradient_of = _undefined_gradient(place, forward_ops)
    where = f" in the backward of {gradient_of}" if gradient_of else ""
    if _has_bad_constant(origin):
        return f"{verb} has a constant argument that is not finite"
    if _divides(bare) and inputs and inputs[-1].num_zero:
        return f"division by zero{where}"
    if ("log" in bare or "sqrt" in bare) and "softmax" not in bare and inputs:
        argument = "a negative number" if min(x.min for x in inputs) < 0 else "0"
        return f"{verb} of {argument}{where}"
    return f"{verb} is undefined for its input{where}"


def domain_why(place: OriginPlace, origin: Origin | None) -> str:
    """Return which argument has no result."""
    num_bad, num_results = place.bad.num_nonfinite, place.bad.num_elements
    share = f"{num_bad} of {plural(num_results, 'result')} {is_or_are(num_bad)} not finite"
    return (
        f"{share}, and fp64 would not help"
        if _has_bad_constant(origin)
        else (f"{_describe_argument(bare_name(place.op), place.inputs)}; {share}, and fp64 would not help")
    )


def domain_fix(place: OriginPlace, origin: Origin | None, forward_ops: Sequence[str]) -> str:
    """Return how to keep the argument inside the domain of the op."""
    bare = bare_name(place.op)
    if _has_bad_constant(origin):
        return (
            f"check where the constant comes from ({place.bad.source})" if place.bad.source else "change the constant"
        )
    if "log" in bare:
        return "use log_softmax instead of log(softmax(x)); otherwise clamp the argument of log or add an eps to it"
    is_branch = place.phase == "forward" and not place.liveness.reaches_loss and place.liveness.num_bad_gradients > 0
    if is_branch or _undefined_gradient(place, forward_ops):
        return (
            "mask the argument, not the result: sqrt(where(ok, x, 1)) instead of where(ok, sqrt(x), 0); "
            "or add an eps inside"
        )
    if _divides(bare):
        return "keep the divisor away from 0: add an eps to it, or clamp it"
    return f"keep the argument of {bare} inside its domain: clamp it, add an eps, or use a fused form"


def _describe_argument(bare: str, inputs: Sequence[Event]) -> str:
    if not inputs:
        return "its inputs were not recorded"
    divisor = inputs[-1]
    if _divides(bare) and divisor.num_zero:
        return f"{divisor.num_zero} of {plural(divisor.num_elements, 'divisor')} {is_or_are(divisor.num_zero)} 0"
    if "nll_loss" in bare and inputs[0].num_neginf:
        return "the target class is masked, with a log-probability of -inf"
    smallest = min(x.min for x in inputs)
    if smallest < 0:
        return f"the lowest argument is {format_short(smallest)}"
    if any(x.num_zero for x in inputs):
        num_zero = sum(x.num_zero for x in inputs)
        return f"{num_zero} of {plural(inputs[0].num_elements, 'argument')} {is_or_are(num_zero)} 0"
    return f"its inputs are finite and reach {format_short(max(x.absmax for x in inputs))}"


def _undefined_gradient(place: OriginPlace, forward_ops: Sequence[str]) -> str | None:
    """Return the forward op on the line of a backward op whose gradient may be undefined."""
    if place.phase != "backward":
        return None
    others = [op for op in forward_ops if "softmax" not in op]
    return next((op for word in _HAVE_GRADIENTS_WITH_A_DOMAIN for op in others if word in op), None)


def _divides(bare: str) -> bool:
    return any(word in bare for word in _DIVIDE)


def _has_bad_constant(origin: Origin | None) -> bool:
    values = origin.arguments.values() if origin is not None else ()
    return any(isinstance(value, float) and not math.isfinite(value) for value in values)
