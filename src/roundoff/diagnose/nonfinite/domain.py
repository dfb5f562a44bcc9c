"""Whether an op left the range of its format or its own domain, and how to say so."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.diagnose.nonfinite.origin import OriginPlace
from roundoff.diagnose.wording import format_short
from roundoff.runs import Event, Origin
from roundoff.runs.records.step_ops import bare_name

_HAVE_A_DOMAIN = ("log", "sqrt", "pow", "acos", "asin", "atanh", "softmax")
_DIVIDE = ("div", "reciprocal", "rsqrt")
_HAVE_GRADIENTS_WITH_A_DOMAIN = ("sqrt", "norm", "cdist", "log", "acos", "asin", "atan2", "std", "var", "div", "pow")
"""The likeliest first: of a root of squares the root has no gradient at 0."""


def left_its_domain(place: OriginPlace, origin: Origin | None) -> bool:
    """Tell log(-1) and 0/0, which no format can hold, from results that are merely too large for theirs.

    The op run again in fp64 decides; where that could not be tried, what goes in does. Infinity out of ops such as exp
    is too large a result also where fp64 cannot hold it either.
    """
    bare = bare_name(place.op)
    if origin is not None and origin.is_finite_in_fp64 is not None:
        return not origin.is_finite_in_fp64 and (place.bad.num_nan > 0 or _is_singular(bare, place.inputs))
    if any(word in bare for word in _DIVIDE):
        return place.bad.num_nan > 0 or not place.inputs or place.inputs[-1].num_zero > 0
    if "log" in bare or "nll_loss" in bare:
        return True
    return place.bad.num_nan > 0 and any(word in bare for word in _HAVE_A_DOMAIN)


def _is_singular(bare: str, inputs: Sequence[Event]) -> bool:
    """Say whether the op can make infinity of numbers that are small: 1/0, log(0), 0 ** -0.5."""
    if "log" in bare or "nll_loss" in bare or any(word in bare for word in _DIVIDE):
        return True
    return "pow" in bare and any(x.num_zero for x in inputs)


def why_outside(place: OriginPlace, origin: Origin | None, forward_ops: Sequence[str]) -> str:
    """Say which argument has no result."""
    bare = bare_name(place.op)
    share = f"{place.bad.num_nonfinite} of {place.bad.num_elements} results are not finite, and fp64 would not help"
    if _has_bad_constant(origin):
        return f"a constant among its arguments is not finite: {share}"
    told = _argument(bare, place.inputs)
    gradient_of = _without_gradient(place, forward_ops)
    if gradient_of:
        told = f"the gradient of {gradient_of} does not exist there: {told}"
    return f"{told}; {share}"


def fix_outside(place: OriginPlace, origin: Origin | None, forward_ops: Sequence[str]) -> str:
    """Say how to keep the argument where the op has a result."""
    bare = bare_name(place.op)
    if _has_bad_constant(origin):
        return f"look where the constant comes from ({place.bad.source})" if place.bad.source else "change the constant"
    if "log" in bare:
        return "use log_softmax instead of log(softmax(x)); elsewhere clamp the argument of log or add an eps to it"
    is_branch = place.phase == "forward" and not place.liveness.reaches_loss and place.liveness.num_bad_gradients > 0
    if is_branch or _without_gradient(place, forward_ops):
        return (
            "mask the argument, not the result: sqrt(where(ok, x, 1)) instead of where(ok, sqrt(x), 0); "
            "or add an eps inside"
        )
    if any(word in bare for word in _DIVIDE):
        return "keep the divisor away from 0: add an eps to it, or clamp it"
    return f"keep the argument of {bare} inside its domain: clamp it, add an eps, or use a fused form"


def _argument(bare: str, inputs: Sequence[Event]) -> str:
    if not inputs:
        return "its inputs were not recorded"
    divisor = inputs[-1]
    if any(word in bare for word in _DIVIDE) and divisor.num_zero:
        return f"{divisor.num_zero} of {divisor.num_elements} divisors are 0"
    if "nll_loss" in bare and inputs[0].num_neginf:
        return "the class it asks for is masked, with a log-probability of -inf"
    smallest = min(x.min for x in inputs)
    if smallest < 0:
        return f"its argument reaches down to {format_short(smallest)}"
    if any(x.num_zero for x in inputs):
        return f"its argument is 0 in {sum(x.num_zero for x in inputs)} of {inputs[0].num_elements} elements"
    return f"its inputs are finite and reach {format_short(max(x.absmax for x in inputs))}"


def _without_gradient(place: OriginPlace, forward_ops: Sequence[str]) -> str | None:
    """Return the forward op on the line of a backward op whose gradient can fail to exist."""
    if place.phase != "backward":
        return None
    others = [op for op in forward_ops if "softmax" not in op]
    return next((op for word in _HAVE_GRADIENTS_WITH_A_DOMAIN for op in others if word in op), None)


def _has_bad_constant(origin: Origin | None) -> bool:
    values = origin.arguments.values() if origin is not None else ()
    return any(isinstance(value, float) and not math.isfinite(value) for value in values)
