"""Whether an op left the range of its format or its own domain, and how to say so."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.numbers import short
from roundoff.diagnose.origin import OriginPlace
from roundoff.diagnose.step_ops import bare_name
from roundoff.runs import Event, Origin

_HAVE_A_DOMAIN = ("log", "sqrt", "pow", "acos", "asin", "atanh", "softmax")
_DIVIDE = ("div", "reciprocal", "rsqrt")
_HAVE_GRADIENTS_WITH_A_DOMAIN = ("sqrt", "norm", "pow", "log", "acos", "asin", "atan2", "std", "var", "div", "cdist")


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
    share = f"{place.bad.num_nonfinite} of {place.bad.num_elements} results are not finite, and would not be in fp64"
    if origin is not None and any(_is_bad_constant(value) for value in origin.arguments.values()):
        return f"a constant among its arguments is not finite: {share}"
    told = _argument(bare, place.inputs)
    gradient_of = [op for op in forward_ops if any(word in op for word in _HAVE_GRADIENTS_WITH_A_DOMAIN)]
    if place.phase == "backward" and gradient_of:
        told = f"the gradient of {gradient_of[0]} does not exist there: {told}"
    return f"{told}; {share}"


def fix_outside(place: OriginPlace) -> str:
    """Say how to keep the argument where the op has a result."""
    bare = bare_name(place.op)
    if "log" in bare:
        return "use log_softmax instead of log(softmax(x)); elsewhere clamp the argument of log or add an eps to it"
    if place.phase == "backward" or (not place.liveness.reaches_loss and place.liveness.num_bad_gradients):
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
        return f"its argument reaches down to {short(smallest)}"
    if any(x.num_zero for x in inputs):
        return f"its argument is 0 in {sum(x.num_zero for x in inputs)} of {inputs[0].num_elements} elements"
    return f"its inputs are finite and reach {short(max(x.absmax for x in inputs))}"


def _is_bad_constant(value: object) -> bool:
    return isinstance(value, float) and value - value != 0
