"""The first difference between a run and its reference, as a finding."""

from __future__ import annotations

from roundoff.compare.divergence import Divergence
from roundoff.compare.runs import RunComparison
from roundoff.diagnose.numbers import format_of, short, told_apart
from roundoff.runs import Finding, Severity

FIRST_DIVERGENCE_CODES = ("first-divergence",)


def first_divergence(comparison: RunComparison) -> Finding | None:
    """Return what introduces the first difference, or None if formats explain all of them."""
    found = comparison.divergence
    if found is None:
        return _later_divergence(comparison)
    return Finding(
        rule="first-divergence",
        severity=Severity.ERROR,
        confidence=_confidence(found),
        step=found.step,
        rank=found.rank if len(comparison.ranks) > 1 else None,
        phase=found.phase,
        site=found.site,
        op=None if found.cause in ("data", "start values") else found.op,
        parameter=found.parameter,
        source=found.source,
        title=_title(found),
        why="\n".join(_why(found, comparison)),
        fix=_fix(found),
        evidence=(_evidence(found),),
    )


def _later_divergence(comparison: RunComparison) -> Finding | None:
    """Return that the losses part in a step that was not recorded, if they do."""
    losses = comparison.losses
    if losses is None or losses.first_divergence is None:
        return None
    stretch, step = losses.stretches[0], losses.first_divergence
    recorded = f"steps {_steps(comparison)}" if comparison.steps else "no step"
    return Finding(
        rule="first-divergence",
        severity=Severity.WARNING,
        confidence=0.8,
        step=step,
        title=f"the losses part at step {step}",
        why=f"from there on the loss is {short(stretch.candidate)} where the reference has {short(stretch.reference)}, "
        f"beyond the reference's own noise\nboth recorded {recorded}, where formats explain every difference",
        fix="record the steps around it in both runs and compare again:  "
        f"roundoff record --steps {max(0, step - 1)}-{step} SCRIPT",
        evidence=({"step": step, "reference": stretch.reference, "candidate": stretch.candidate},),
    )


def _title(found: Divergence) -> str:
    if found.factor is not None:
        return f"the gradients that the ranks agree on are {short(found.factor)} times those of the reference"
    place = " / ".join(part for part in (found.site, found.op, found.parameter) if part)
    when = f"step {found.step}, {found.phase}"
    if found.channel is not None:
        when += f", channel {found.channel} of {found.num_channels}"
    if found.shapes is not None:
        return f"{place} has another shape, {found.shapes[0]} in the reference, {found.shapes[1]} here: {when}"
    if found.op == "parameter" and found.cause == "optimizer":
        return f"{found.parameter or found.site} was updated in another way: before step {found.step}"
    if found.cause == "data":
        return f"the runs were given different data: {place}, {when}"
    if found.cause == "start values":
        return f"the runs began with different weights: {found.parameter or found.site}, {when}"
    if found.cause == "randomness":
        return f"{place} draws other random numbers: {when}"
    if _reads_another(found):
        return f"{place} reads another tensor than in the reference, its {found.output}: {when}"
    if found.is_only_in is not None:
        return f"{place}, which only the {found.is_only_in} runs, introduces the first difference: {when}"
    return f"{place} introduces the first difference: {when}"


def _reads_another(found: Divergence) -> bool:
    """Say whether an input differs that nothing in the step made: a buffer, a mask, a constant."""
    return found.output.startswith("input") and found.cause not in ("data", "start values")


def _why(found: Divergence, comparison: RunComparison) -> list[str]:
    lines = [_amount(found)]
    if found.num_later:
        lines.append(f"{found.num_later} later results differ because of it")
    losses = comparison.losses
    if losses is not None and losses.points:
        reference, candidate = told_apart(losses.points[0].reference, losses.points[0].candidate)
        both = (
            f"{reference} in both" if reference == candidate else f"{reference} in the reference and {candidate} here"
        )
        lines.append(f"the first loss is {both}")
    return lines


def _amount(found: Divergence) -> str:
    if found.cause in ("data", "start values") or found.op == "parameter":
        return f"they differ by {_share(found.relative)} of their norm; nothing before them does"
    if found.shapes is not None:
        return "everything before it agrees within its format"
    if found.factor is not None:
        return "that is so in most parameters of the first step; on another number of ranks they should be the same"
    if found.cause == "randomness":
        return "everything before it agrees within its format"
    unit = f"ulp ({format_of(found.format)})"
    introduced, inherited = short(found.introduced_ulps), short(found.inherited_ulps)
    return f"introduced {introduced} {unit}, inherited {inherited} ulp; everything before it agrees within its format"


def _share(relative: float) -> str:
    """Write a relative difference.

    >>> _share(0.0123), _share(3e-7), _share(1.7)
    ('1.2 %', '3e-07', '170 %')
    """
    if relative >= 10 or relative < 1e-4:
        return f"{relative:.2g}"
    return f"{100 * relative:.2g} %" if relative < 0.995 else f"{100 * relative:.0f} %"


def _fix(found: Divergence) -> str:
    fixes = {
        "data": "give both the same batches in the same order: the same files, transforms, sampler and seed",
        "start values": "start both from one checkpoint, or seed both alike before the model is built",
        "randomness": "seed both alike before the first step, or switch dropout off while comparing",
        "optimizer": "compare the optimizer's settings of the two runs, and its implementation",
        "collective": "compare how the ranks' gradients are put together: sum or mean, which ranks, which format",
    }
    if _reads_another(found):
        return f"compare the buffers and constants of {found.site} on both sides, and what they are made from"
    if found.is_only_in is not None:
        return f"look at why only the {found.is_only_in} runs it"
    return fixes.get(found.cause, "look at this op's settings and its kernel on both sides")


def _confidence(found: Divergence) -> float:
    return 0.99 if found.inherited_ulps == 0 else 0.9


def _evidence(found: Divergence) -> dict[str, float | int | str | None]:
    return {
        "cause": found.cause,
        "relative": found.relative,
        "introduced_ulps": found.introduced_ulps,
        "inherited_ulps": found.inherited_ulps,
        "format": format_of(found.format),
        "channel": found.channel,
        "num_channels": found.num_channels,
        "only_in": found.is_only_in,
        "num_later": found.num_later,
    }


def _steps(comparison: RunComparison) -> str:
    return ", ".join(str(step) for step in comparison.steps)
