"""The rule for NaN and infinity: where they came from, or at least that they are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from roundoff.diagnose.nonfinite.bad_step import BadStep, bad_steps
from roundoff.diagnose.nonfinite.loss_scale_collapse import overflow_by_scale
from roundoff.diagnose.nonfinite.origin_finding import nonfinite_input, origin_finding
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity
from roundoff.words import plural

# == The update that grew the weights before a value overflowed.

_NUM_STEPS = 20
"""An update so many measured steps before may still be the cause."""


def update_before(run: Run, bad: BadStep) -> Finding | None:
    """Return the finding about the latest update that was larger than the weights it changed; None without one."""
    known = pc.unique(run.parameters(rank=bad.rank)["step"]).to_pylist()
    measured = sorted(step for step in known if step < bad.step)[-_NUM_STEPS:]
    rows = run.parameters(step=measured, rank=bad.rank).to_pylist()
    whole = {step: math.hypot(*(row["l2"] for row in rows if row["step"] == step)) for step in measured}
    grown = [row for row in rows if _is_large(row, whole[row["step"]])]
    if not grown:
        return None
    worst = max(grown, key=lambda row: (row["step"], row["update_l2"] / row["l2"]))
    return Finding(
        rule="lr-too-high",
        severity=Severity.WARNING,
        confidence=0.7,
        step=worst["step"],
        rank=bad.rank,
        phase="optimizer",
        site=worst["site"],
        parameter=worst["parameter"],
        title=f"one update grew {worst['parameter']}",
        why=f"the update of step {worst['step']} has the norm {format_short(worst['update_l2'])}, and the "
        "parameter after it "
        f"{format_short(worst['l2'])}",
        fix="lower the learning rate, warm it up, or clip the gradients",
    )


def _is_large(row: dict[str, Any], whole: float) -> bool:
    """Say whether an update is half the parameter it leaves, and of weight in the model: biases begin at 0."""
    update = row["update_l2"]
    return update is not None and update > row["l2"] / 2 and update > whole / 4


# == What bad values led to; the finding itself only where nobody knows where they came from.

_CHECK = "check before the step: torch.nn.utils.clip_grad_norm_(..., error_if_nonfinite=True), or use a GradScaler"


def step_on_bad_gradients(bad: BadStep) -> Finding | None:
    """Say that the optimizer stepped on gradients that are not finite; None if it did not."""
    if not bad.gradients_are_bad or bad.was_skipped or bad.was_undone:
        return None
    names = bad.names_of("gradient")
    num_bad = bad.place.liveness.num_bad_gradients if bad.place is not None else len(names)
    told = f"{plural(num_bad, 'gradient')} were not finite" if num_bad > 1 else "a gradient was not finite"
    return Finding(
        rule="step-on-nonfinite-gradients",
        severity=Severity.ERROR,
        confidence=0.9,
        step=bad.step,
        rank=bad.rank,
        phase="optimizer",
        parameter=names[0] if names else None,
        title="the optimizer stepped on gradients that are not finite",
        why=f"{told}{_named(names)} when the step was taken, and the weights have been so ever since",
        fix=_CHECK,
        evidence=({"parameters": list(names)},),
    )


def poisoned_statistics(bad: BadStep) -> Finding | None:
    """Say that a norm's running statistics took in a bad batch; None if no buffer is bad."""
    names = bad.names_of("buffer")
    if not names:
        return None
    skipped = "the optimizer's step was skipped, but " if bad.was_skipped else ""
    return Finding(
        rule="norm-statistics-nonfinite",
        severity=Severity.ERROR,
        confidence=0.95,
        step=bad.step,
        rank=bad.rank,
        phase="forward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title=f"the running statistics {names[0]} are not finite",
        why=f"{skipped}a norm updates its statistics in forward, and they keep the bad batch of step {bad.step}"
        f"{_named(names[1:], 'also ')}: evaluation is broken from here on",
        fix="put the buffers back when a step is skipped, as the optimizer of apply_recipe does, "
        "or look at the batch before the forward",
        evidence=({"buffers": list(names)},),
    )


def loss_without_origin(bad: BadStep) -> Finding:
    """Say that something is not finite, and why nobody can say where it came from."""
    parts = [kind for kind in ("loss", "gradient", "weight", "buffer") if bad.has(kind)]
    if bad.loss_is_bad or not parts:
        return _bare_loss(bad)
    if parts == ["buffer"]:
        return poisoned_statistics(bad) or _bare_loss(bad)
    if "gradient" in parts:
        return step_on_bad_gradients(bad) or _bare_loss(bad)
    return _bare_update(bad)


def _bare_loss(bad: BadStep) -> Finding:
    return Finding(
        rule="loss-nonfinite",
        severity=Severity.ERROR,
        confidence=0.9,
        step=bad.step,
        rank=bad.rank,
        phase="forward",
        title="the loss is not finite" if bad.loss_is_bad else "the step is not finite",
        why=f"{_why_unknown(bad)}\n{_fine_before(bad)}".strip(),
        fix=f"record the step with its inputs:  roundoff record --inputs --stacks --steps {bad.step} SCRIPT",
    )


def _bare_update(bad: BadStep) -> Finding:
    names = bad.names_of("weight")
    return Finding(
        rule="nonfinite-update",
        severity=Severity.ERROR,
        confidence=0.6,
        step=bad.step,
        rank=bad.rank,
        phase="optimizer",
        parameter=names[0] if names else None,
        title="weights are not finite after the optimizer's step",
        why=f"loss and gradients were finite{_named(names)}; {_why_unknown(bad)}\n{_fine_before(bad)}".strip(),
        fix="look at the learning rate and at the optimizer's eps; narrow formats need fp32 master weights",
    )


def _why_unknown(bad: BadStep) -> str:
    place = bad.place
    if place is None and bad.replay_note is not None:
        return f"{bad.replay_note}, so the op it came from is not known"
    if bad.events is None:
        return "the step was not replayed, so the op it came from is not known"
    if place is None:
        return "in the replay of the step everything that matters is finite, so the op it came from is not known"
    if place.kind == "parameter":
        return f"{place.bad.parameter} was not finite when the step began: it came about in an earlier step"
    if place.kind == "collective":
        return f"it came from another rank, with {place.bad.op_name}"
    return (
        f"a tensor that {place.bad.op_name} in {place.site} reads was not finite when the step began: a buffer, the "
        "optimizer's state, or memory that was never written (torch.empty)"
    )


def _fine_before(bad: BadStep) -> str:
    return f"Losses were finite up to step {bad.step - 1}." if bad.step and bad.place is None else ""


def _named(names: Sequence[str], before: str = "") -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" ({before}{', '.join(names[:3])}{more})"


_NARROW = ("float16", "bfloat16")


def nonfinite_values(run: Run) -> list[Finding]:
    """Find where NaN and infinity came from: one finding for each cause, with its consequences as related ones.

    Steps that loss scaling left out on purpose are silent. A cause that shows again in later steps or on other ranks
    is told once.
    """
    steps = [bad for bad in bad_steps(run) if not bad.is_deliberate]
    from_elsewhere = {bad.step for bad in steps if bad.place is not None and bad.place.kind in ("op", "input")}
    found = [
        _finding(run, bad)
        for bad in steps
        if not (bad.place is not None and bad.place.kind == "collective" and bad.step in from_elsewhere)
    ]
    return _once_each(found)


def first_nonfinite(run: Run) -> Finding | None:
    """Return the finding about the earliest bad value that matters, or None."""
    found = nonfinite_values(run)
    return min(found, key=lambda finding: finding.step or 0) if found else None


def _finding(run: Run, bad: BadStep) -> Finding:
    place = bad.place
    if place is None or place.kind in ("parameter", "state", "collective"):
        main = loss_without_origin(bad)
    elif place.kind == "input":
        main = nonfinite_input(bad, place)
    else:
        main = overflow_by_scale(bad, origin_finding(run, bad, place))
    related = [found for found in (step_on_bad_gradients(bad), poisoned_statistics(bad)) if found is not None]
    is_narrow = place is not None and place.bad.dtype in _NARROW  # in a wide format the update itself is the fault
    if main.rule == "overflow" and is_narrow and (update := update_before(run, bad)) is not None:
        related.insert(0, update)
    if bad.was_skipped and bad.has("buffer"):
        statistics = related.pop()  # all that is left of the batch
        return replace(statistics, related=(*related, main))
    return replace(main, related=tuple(other for other in related if other.rule != main.rule))


def _once_each(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding about each place; note on it in how many more steps it shows, if any."""
    kept: dict[tuple[str, str | None, str | None], Finding] = {}
    again: dict[tuple[str, str | None, str | None], set[int]] = {}
    for finding in sorted(findings, key=lambda finding: (finding.step or 0, finding.rank or 0)):
        key = (finding.rule, finding.site, finding.op)
        kept.setdefault(key, finding)
        if finding.step is not None and finding.step != kept[key].step:
            again.setdefault(key, set()).add(finding.step)
    return [
        replace(finding, evidence=(*finding.evidence, {"also_in_steps": sorted(again[key])}))
        if key in again
        else finding
        for key, finding in kept.items()
    ]
