"""The finding about the first bad value: the op that computed it from good ones, or the batch that contained it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from roundoff.diagnose.nonfinite.bad_step import BadStep, bad_index_in_batch, sample_of, spread_of
from roundoff.diagnose.nonfinite.origin import OriginPlace
from roundoff.diagnose.rule import error
from roundoff.diagnose.wording import FORMATS, format_of, format_short, format_whole, largest_of
from roundoff.runs import Event, Finding, JsonValue, Origin, Run, Severity
from roundoff.runs.records.event import bare_name
from roundoff.words import is_or_are, plural

_ROUNDING = "roundoff.round"


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginText:
    """The code and the words of a finding about an origin."""

    rule: str
    title: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedResult:
    """The result of an op, finite before it was rounded but not after: emulated recipes round in an op of their own."""

    result: Event
    """As the op computed it."""
    inputs: tuple[Event, ...]
    """The inputs of that op."""
    fmt: str | None
    """The format it was rounded to, if the rounding was caught."""


def is_rounding(place: OriginPlace) -> bool:
    """Say whether the op that made the bad value is the rounding of an emulated recipe."""
    return place.op.startswith(_ROUNDING)


def rounded_result(bad: BadStep, place: OriginPlace) -> RoundedResult | None:
    """Return the result that a rounding made infinite; None if that is unknown.

    It is recognized by its hash: the input of the rounding is bitwise the result of the op.
    """
    if not is_rounding(place) or bad.events is None or not place.inputs:
        return None
    rounded = place.inputs[0]
    events = [
        event
        for event in bad.events.iter_events(step=bad.events_step, rank=bad.rank, phase=place.phase)
        if event.site == place.site and event.microbatch == place.microbatch and not event.op.startswith(_ROUNDING)
    ]
    made = [
        event
        for event in events
        if event.output.startswith("output") and event.hash == rounded.hash and event.order < place.bad.order
    ]
    if not made:
        return None
    result = min(made, key=lambda event: event.order)  # others with that hash are views of it
    inputs = tuple(event for event in events if event.op_name == result.op_name and event.output.startswith("input"))
    fmt = None if bad.origin is None else bad.origin.arguments.get("format")
    return RoundedResult(result=result, inputs=inputs, fmt=fmt if isinstance(fmt, str) else None)


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution")
_NARROW = ("fp16", "bf16", "e4m3", "e5m2")


def origin_finding(run: Run, bad: BadStep, place: OriginPlace) -> Finding:
    """Return what the op did wrong, how far it spread, and what to change."""
    text = _describe_origin(run, bad, place)
    rounded = rounded_result(bad, place)
    is_benign = bad.was_skipped or text.rule == "no-valid-targets"
    return Finding(
        rule=text.rule,
        severity=Severity.WARNING if is_benign else Severity.ERROR,
        confidence=_confidence(bad, place),
        step=bad.step,
        rank=bad.rank,
        phase=place.phase,
        site=place.site,
        op=place.bad.op_name if rounded is None else rounded.result.op_name,
        parameter=place.bad.parameter,
        source=place.bad.source,
        title=text.title,
        why="\n".join(part for part in (text.why, spread_of(bad, place)) if part),
        fix=text.fix,
        evidence=evidence_of(bad, place),
    )


def evidence_of(bad: BadStep, place: OriginPlace) -> tuple[JsonValue, ...]:
    """Return the measurements: the tensors of the op, its result in fp64, and what the bad value reached."""
    tensors: list[JsonValue] = [
        {"tensor": event.output, "absmax": event.absmax, "nonfinite": event.num_nonfinite, "dtype": event.dtype,
         "shape": list(event.shape)}
        for event in (*place.inputs, place.bad)
    ]  # fmt: skip
    reached = place.liveness
    spread: JsonValue = {
        "loss": reached.reaches_loss, "gradients": reached.num_bad_gradients, "of_gradients": reached.num_gradients,
        "weights": reached.num_bad_weights, "of_weights": reached.num_weights,
    }  # fmt: skip
    found: list[JsonValue] = [*tensors, {"reaches": spread}]
    if bad.origin is not None:
        found.append(
            {"finite_in_fp64": bad.origin.is_finite_in_fp64, "fp64_absmax": bad.origin.fp64_absmax,
             "bad_index": None if bad.origin.bad_index is None else list(bad.origin.bad_index)}
        )  # fmt: skip
    return tuple(found)


def _describe_origin(run: Run, bad: BadStep, place: OriginPlace) -> OriginText:
    if _has_no_targets(bad, place):
        return _no_valid_targets()
    if place.is_masked:
        return _masked_softmax(bad, place)
    if place.phase == "optimizer":
        return _nonfinite_update(place)
    if left_its_domain(place, bad.origin):
        forward_ops = _forward_ops(bad, place)
        return OriginText(
            rule="domain-error",
            title=domain_title(place, bad.origin, forward_ops, verb=_verb(place)),
            why=domain_why(place, bad.origin),
            fix=domain_fix(place, bad.origin, forward_ops),
        )
    return _overflow(run, bad, place)


def _overflow(run: Run, bad: BadStep, place: OriginPlace) -> OriginText:
    if is_rounding(place):
        return _rounding_overflow(run, bad, place)
    name, noun, verb = format_of(place.bad.dtype), "product" if _is_product(place) else "result", _verb(place)
    reach = _describe_reach(place)
    limit = format_whole(largest_of(name)) if name in FORMATS.values() else "its largest number"
    origin = bad.origin
    if origin is not None and origin.is_finite_in_fp64 and origin.fp64_absmax is not None:
        why = f"{reach}the {noun} {format_short(origin.fp64_absmax)} exceeds {limit}; in fp64 it is finite"
    elif origin is not None and origin.is_finite_in_fp64 is False:
        why = f"{reach}the {noun} exceeds {limit}, and overflows in fp64 too"
    else:
        share = f"{place.bad.num_nonfinite} of {place.bad.num_elements} {noun}s"
        largest = f"{limit}, the largest number of {name}" if limit[0].isdigit() else limit
        why = f"{reach}{share} {'exceeds' if place.bad.num_nonfinite == 1 else 'exceed'} {largest}"
    return OriginText(
        rule="overflow",
        title=f"{name} {verb} overflowed",
        why=why + _first_sample(bad),
        fix=_overflow_fix(run, place, name, verb),
    )


def _rounding_overflow(run: Run, bad: BadStep, place: OriginPlace) -> OriginText:
    """Describe a result that an emulated recipe could not round: the op that computed it is to blame."""
    rounded = rounded_result(bad, place)
    if rounded is None:
        return OriginText(
            rule="overflow",
            title="a rounding to the recipe's format overflowed",
            why=f"{_describe_reach(place)}which exceeds the range of the format{_first_sample(bad)}",
            fix=_overflow_fix(run, place, "the recipe's format", "rounding"),
        )
    maker = replace(place, bad=rounded.result, inputs=rounded.inputs)
    name, noun, verb = rounded.fmt or "the recipe's format", "product" if _is_product(maker) else "result", _verb(maker)
    limit = format_whole(largest_of(name)) if name in FORMATS.values() else "its largest number"
    exceeds = f"the {noun} {format_short(rounded.result.absmax)} exceeds {limit}"
    return OriginText(
        rule="overflow",
        title=f"{name} {verb} overflowed" if rounded.fmt is not None else f"{verb} overflowed in {name}",
        why=f"{_describe_reach(maker)}{exceeds}; before rounding it is finite{_first_sample(bad)}",
        fix=_overflow_fix(run, maker, name, verb),
    )


def _describe_reach(place: OriginPlace) -> str:
    reach = max((x.absmax for x in place.inputs if x.absmax == x.absmax), default=None)
    return f"its inputs reach {format_short(reach)}, " if reach is not None else ""


def _first_sample(bad: BadStep) -> str:
    sample = sample_of(bad)
    return f" (first in sample {sample} of the batch)" if sample is not None else ""


def _overflow_fix(run: Run, place: OriginPlace, name: str, verb: str) -> str:
    at = f" ({place.bad.source})" if place.bad.source else ""
    if verb == "exp":
        smaller = f"subtract the largest argument before exp, as softmax does{at}"
    elif _is_product(place) and place.phase == "forward":
        smaller = f"scale its factors before the {verb}, not the product after it{at}"
    elif place.phase == "backward" and run.info.recipe is None:
        smaller = f"lower the loss scale, or the loss{at}"
    else:
        smaller = f"make the inputs of {verb} smaller first{at}"
    is_narrow = name in _NARROW or name not in FORMATS.values()
    if not is_narrow or place.site.startswith("<"):
        return smaller
    recipe = _applied_recipe(run)
    if recipe is None:
        return f"compute it in fp32: cast the inputs of {verb} in {place.site} with .float()\nor {smaller}"
    override = f'apply_recipe(model, optimizer, {recipe}, overrides={{"{place.site}": "fp32"}})'
    return f"keep this layer wide:  {override}\nor {smaller}"


def _applied_recipe(run: Run) -> str | None:
    """Return the recipe as the script should write it, or dots if only the script knows; None if there is none."""
    if run.info.recipe is not None:
        return f'"{run.info.recipe}"'
    is_applied = any(optimizer.recipe for made_of in run.structures() for optimizer in made_of.optimizers)
    return "..." if is_applied else None


def _masked_softmax(bad: BadStep, place: OriginPlace) -> OriginText:
    sample = sample_of(bad)
    row = f"a row of sample {sample} of the batch" if sample is not None else "a row"
    why = (
        f"{row} is masked as a whole, and softmax over nothing but -inf is 0/0: "
        f"{place.bad.num_nan} of {place.bad.num_elements} results are NaN"
    )
    fix = (
        "leave one position of every row unmasked, mask with a large negative number instead of -inf, or use "
        "scaled_dot_product_attention with a boolean mask"
    )
    return OriginText(rule="masked-softmax", title="softmax has a fully masked row", why=why, fix=fix)


def _has_no_targets(bad: BadStep, place: OriginPlace) -> bool:
    """Say whether the loss is a mean over no targets: the weights in nll_loss add up to 0."""
    if not bare_name(place.op).startswith("nll_loss") or bad.events is None or not place.bad.num_nan:
        return False
    events = bad.events.iter_events(
        step=bad.events_step, rank=bad.rank, op=place.bad.op_name, site=_exactly(place.site)
    )
    totals = [e for e in events if e.output == "output1" and e.microbatch == place.microbatch and e.phase == "forward"]
    return any(total.num_zero == total.num_elements == 1 for total in totals)


def _no_valid_targets() -> OriginText:
    return OriginText(
        rule="no-valid-targets",
        title="the batch has no valid target",
        why="every target of the batch is ignore_index, so the mean is 0/0; the gradients are 0 and the weights are "
        "fine",
        fix="skip such batches, or divide the sum of the losses by max(1, number of valid targets)",
    )


def _nonfinite_update(place: OriginPlace) -> OriginText:
    name, bare = format_of(place.bad.dtype), bare_name(place.op)
    what = place.bad.parameter or "a parameter"
    divisor = place.inputs[-1] if place.inputs else None
    divides = "div" in bare and divisor is not None and divisor.num_zero > 0
    if divides and name in _NARROW:
        why = f"{bare} divides by 0: the optimizer's eps and the squares of small gradients round to 0 in {name}"
        fix = (
            'keep fp32 master weights:  apply_recipe(model, optimizer, "O2")\n'
            "or use an eps that the format can represent, such as 1e-4"
        )
    else:
        reach = max((x.absmax for x in place.inputs if x.absmax == x.absmax), default=None)
        inputs = f"its inputs are finite and reach {format_short(reach)}; " if reach is not None else ""
        why = f"{inputs}{place.bad.num_nonfinite} of {place.bad.num_elements} results of {bare} are not finite"
        fix = f"lower the learning rate, or keep the weights and the optimizer's state wider than {name}"
    return OriginText(
        rule="nonfinite-update", title=f"the optimizer's update of {what} is not finite", why=why, fix=fix
    )


def _confidence(bad: BadStep, place: OriginPlace) -> float:
    if not place.has_inputs or not bad.is_faithful:
        return 0.7
    return 0.99 if bad.origin is not None else 0.95


def _forward_ops(bad: BadStep, place: OriginPlace) -> list[str]:
    """Return the bare names of the forward ops on the source line of a backward op."""
    if place.phase != "backward" or bad.events is None or place.bad.source is None:
        return []
    events = bad.events.iter_events(step=bad.events_step, rank=bad.rank, phase="forward", site=_exactly(place.site))
    return list(dict.fromkeys(bare_name(event.op) for event in events if event.source == place.bad.source))


def _exactly(site: str) -> str:
    """Return a pattern that matches only this site."""
    return site.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def _is_product(place: OriginPlace) -> bool:
    return bare_name(place.op) in _PRODUCTS


def _verb(place: OriginPlace) -> str:
    bare = bare_name(place.op).strip("_")
    if bare in ("to_copy", "copy"):
        return "cast"
    return "matmul" if _is_product(place) and bare != "convolution" else bare


def nonfinite_input(bad: BadStep, place: OriginPlace) -> Finding:
    """Return which sample of the batch, and which of its features, is not finite."""
    event = place.bad
    found = bad_index_in_batch(bad)
    what = "NaN" if event.num_nan else "infinity"
    verb = "is" if event.num_nonfinite == 1 else "are"
    where = f"{event.num_nonfinite} of {event.num_elements} elements {verb} not finite"
    evidence: list[JsonValue] = list(evidence_of(bad, place))
    if found is not None:
        key, index = found
        sample, feature = index[0] if index else 0, index[1:]
        where += f", the first in sample {sample} of the batch" + (f", feature {_feature(feature)}" if feature else "")
        evidence.append({"batch": key, "index": list(index)})
    return error(
        rule="nonfinite-input",
        confidence=0.95 if event.op == "input" else 0.85,
        step=bad.step,
        rank=bad.rank,
        phase=event.phase,
        site=event.site,
        op=None if event.op == "input" else event.op_name,
        source=event.source,
        title=f"the batch contains {what}",
        why=f"{where} ({plural(max(event.shape[0], 1), 'sample') if event.shape else 'a scalar'})"
        f"\n{spread_of(bad, place)}",
        fix="check this sample in the dataset; clean it, or skip samples that are not finite: torch.isfinite(x).all()",
        evidence=tuple(evidence),
    )


def _feature(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(tuple(index))


# -- operations outside of their domain --------------------------------------------------------------------------------


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
    if "log" in bare or "nll_loss" in bare or "ctc_loss" in bare:
        return True
    return place.bad.num_nan > 0 and any(word in bare for word in _HAVE_A_DOMAIN)


def _is_singular(bare: str, inputs: Sequence[Event]) -> bool:
    """Say whether the op can give infinity for small inputs: 1/0, log(0), 0 ** -0.5, a target that does not fit."""
    if "log" in bare or "nll_loss" in bare or "ctc_loss" in bare or _divides(bare):
        return True
    return "pow" in bare and any(x.num_zero for x in inputs)


def domain_title(place: OriginPlace, origin: Origin | None, forward_ops: Sequence[str], *, verb: str) -> str:
    """Return what the op could not compute, such as a division by zero in the backward of sqrt."""
    bare, inputs = bare_name(place.op), place.inputs
    gradient_of = _undefined_gradient(place, forward_ops)
    where = f" in the backward of {gradient_of}" if gradient_of else ""
    if _has_bad_constant(origin):
        return f"{verb} has a constant argument that is not finite"
    if "ctc_loss" in bare:
        return "a target of the CTC loss does not fit into its output"
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
    if "ctc_loss" in bare:
        return (
            "give the loss more time steps (pool or stride less), or leave such samples out; zero_infinity=True only "
            "hides them"
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
    if "ctc_loss" in bare and len(inputs) == 4:
        return (
            f"the output has up to {inputs[2].max:.0f} time steps and targets have up to {inputs[3].max:.0f} labels; a "
            "target needs a step for each label, and one more between two equal labels"
        )
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
