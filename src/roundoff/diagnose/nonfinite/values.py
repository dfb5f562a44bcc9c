"""NaN and infinity: where they came from, what they did, or at least that they are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from roundoff.diagnose.nonfinite.bad_step import BadStep, bad_steps
from roundoff.diagnose.nonfinite.loss_scale_collapse import overflow_by_scale
from roundoff.diagnose.nonfinite.origin_finding import nonfinite_input, origin_finding
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity
from roundoff.words import plural

_NUM_STEPS = 20
"""An update up to this many measured steps earlier may be the cause."""


def update_before(run: Run, bad: BadStep) -> Finding | None:
    """Return a finding about the latest update that was larger than the weights it changed; None without one."""
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
        title=f"one update enlarged {worst['parameter']}",
        why=f"the update of step {worst['step']} has the norm {format_short(worst['update_l2'])}, the parameter after "
        f"it {format_short(worst['l2'])}",
        fix="lower the learning rate, warm it up, or clip the gradients",
    )


def _is_large(row: dict[str, Any], whole: float) -> bool:
    """Say whether an update is half the parameter after it, and large in the whole model: biases start at 0."""
    update = row["update_l2"]
    return update is not None and update > row["l2"] / 2 and update > whole / 4


_CHECK = "check before the step: torch.nn.utils.clip_grad_norm_(..., error_if_nonfinite=True), or use a GradScaler"


def step_on_bad_gradients(bad: BadStep) -> Finding | None:
    """Return a finding if the optimizer stepped on gradients that are not finite, or None."""
    if not bad.gradients_are_bad or bad.was_skipped or bad.was_undone:
        return None
    names = bad.names_of("gradient")
    num_bad = bad.place.liveness.num_bad_gradients if bad.place is not None else len(names)
    what = f"{plural(num_bad, 'gradient')} were not finite" if num_bad > 1 else "a gradient was not finite"
    return Finding(
        rule="step-on-nonfinite-gradients",
        severity=Severity.ERROR,
        confidence=0.9,
        step=bad.step,
        rank=bad.rank,
        phase="optimizer",
        parameter=names[0] if names else None,
        title="the optimizer stepped on gradients that are not finite",
        why=f"{what}{_in_brackets(names)} when the step was taken, and the weights have not been finite since",
        fix=_CHECK,
        evidence=({"parameters": list(names)},),
    )


def poisoned_statistics(bad: BadStep) -> Finding | None:
    """Return a finding if running statistics contain a bad batch; None if no buffer is bad."""
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
        why=f"{skipped}running statistics are updated in forward and keep the bad batch of step {bad.step}"
        f"{_in_brackets(names[1:], 'also ')}: evaluation is broken from here on",
        fix="restore the buffers when a step is skipped, as the optimizer of apply_recipe does, "
        "or check the batch before the forward",
        evidence=({"buffers": list(names)},),
    )


def loss_without_origin(bad: BadStep) -> Finding:
    """Return a finding that something is not finite, and why its origin is unknown."""
    parts = [kind for kind in ("loss", "gradient", "weight", "buffer") if bad.has(kind)]
    if bad.loss_is_bad or not parts:
        return _loss_finding(bad)
    if parts == ["buffer"]:
        return poisoned_statistics(bad) or _loss_finding(bad)
    if "gradient" in parts:
        return step_on_bad_gradients(bad) or _loss_finding(bad)
    return _update_finding(bad)


def _loss_finding(bad: BadStep) -> Finding:
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


def _update_finding(bad: BadStep) -> Finding:
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
        why=f"loss and gradients were finite{_in_brackets(names)}; {_why_unknown(bad)}\n{_fine_before(bad)}".strip(),
        fix="check the learning rate and the optimizer's eps; narrow formats need fp32 master weights",
    )


def _why_unknown(bad: BadStep) -> str:
    place = bad.place
    if place is None and bad.replay_note is not None:
        return f"{bad.replay_note}, so the op it came from is unknown"
    if bad.events is None:
        return "the step was not replayed, so the op it came from is unknown"
    if place is None:
        return "in the replay of the step everything that matters is finite, so the op it came from is unknown"
    if place.kind == "parameter":
        return f"{place.bad.parameter} was not finite when the step began: it comes from an earlier step"
    if place.kind == "collective":
        return f"it came from another rank, with {place.bad.op_name}"
    return (
        f"a tensor that {place.bad.op_name} in {place.site} reads was not finite when the step began: a buffer, the "
        "optimizer's state, or uninitialized memory (torch.empty)"
    )


def _fine_before(bad: BadStep) -> str:
    return f"Losses were finite up to step {bad.step - 1}." if bad.step and bad.place is None else ""


def _in_brackets(names: Sequence[str], before: str = "") -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" ({before}{', '.join(names[:3])}{more})"


_NARROW = ("float16", "bfloat16")


def nonfinite_values(run: Run) -> list[Finding]:
    """Find where NaN and infinity came from: one finding per cause, with its consequences as related findings.

    Steps that loss scaling skipped on purpose are not reported. A cause that shows again in later steps or on other
    ranks is reported once.
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
    is_narrow = place is not None and place.bad.dtype in _NARROW  # in a wide format the update itself is at fault
    if main.rule == "overflow" and is_narrow and (update := update_before(run, bad)) is not None:
        related.insert(0, update)
    if bad.was_skipped and bad.has("buffer"):
        statistics = related.pop()  # the only effect that remains of the batch
        return replace(statistics, related=(*related, main))
    return replace(main, related=tuple(other for other in related if other.rule != main.rule))


def _once_each(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding about each place, with the other steps in which it shows."""
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


def _any_step(run: Run) -> str | None:
    has_some = any(run.metrics(rank=rank) or run.anomalies(rank=rank) for rank in run.ranks)
    return None if has_some or run.steps or run.replayed_steps else "no step was recorded"


RULES = (
    Rule(
        order=810,
        checks="NaN and infinity in losses, gradients, weights and buffers",
        find=nonfinite_values,
        needs=(_any_step,),
        codes=(
            Code(
                name="overflow",
                means="An op computed a result that is too large for its format, although its inputs were finite. The "
                "infinity reached a loss, a gradient or a weight; everything after that is a consequence.",
                detected="A bad step is replayed op by op. The origin is the first op with good inputs and a bad "
                "result that reaches a loss, a gradient, a weight or a statistic. That op is run again in fp64 with "
                "its real inputs: if the result is finite there, the format was too narrow.",
                fix="Compute this op in fp32, with a cast or a recipe override, or make its inputs smaller before it, "
                "not its result after it. The verdict shows how.",
                leads_to=(Effect.NONFINITE,),
                follows_from=(Effect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
            ),
            Code(
                name="loss-scale-overflow",
                means="The gradients are finite, but become infinite once they are multiplied by the loss scale.",
                detected="The origin is in backward, in a narrow format, and the value that overflowed there is finite "
                "when divided by the loss scale.",
                fix="Use a dynamic scale, which backs off by itself, or a smaller static one, and skip steps whose "
                "gradients are not finite.",
                leads_to=(Effect.NONFINITE,),
            ),
            Code(
                name="domain-error",
                means="An op received an argument for which it has no result: log(0), 0/0, the square root of a "
                "negative number. No format is wide enough for that.",
                detected="As for an overflow, but the op gives a bad value in fp64 too; its arguments show why.",
                fix="Keep the argument inside the domain before the op: `log_softmax` instead of `log(softmax)`, an "
                "`eps` inside the square root, and a safe argument in the branch that `where` does not take.",
                leads_to=(Effect.NONFINITE,),
                follows_from=(Effect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
            ),
            Code(
                name="masked-softmax",
                means="A row of an attention is masked completely, and a softmax over -inf alone is 0/0.",
                detected="The origin is a softmax with a row that contains only -inf.",
                fix="Leave one position of every row unmasked, or mask with a large negative number instead of -inf.",
                leads_to=(Effect.NONFINITE,),
            ),
            Code(
                name="nonfinite-update",
                means="Gradients were finite, but the optimizer's update made weights that are not. In fp16 the usual "
                "eps of 1e-8 is 0, so Adam divides by 0.",
                detected="The origin is an op of the optimizer: gradients and weights before it were finite.",
                fix='Keep fp32 master weights, `apply_recipe(model, optimizer, "O2")`, use an eps that the format can '
                "represent, or lower the learning rate.",
                leads_to=(Effect.NONFINITE,),
                follows_from=(Effect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
            ),
            Code(
                name="nonfinite-input",
                means="The batch already contained NaN or infinity, before any layer saw it.",
                detected="The first bad tensor of the replayed step is an input of the model that no op computed.",
                fix="Clean the sample that the verdict names, and check samples where they are read.",
                leads_to=(Effect.NONFINITE,),
            ),
            Code(
                name="norm-statistics-nonfinite",
                means="The running statistics of a normalization layer contain NaN or infinity from a bad batch. Even "
                "if the step was skipped, the buffer keeps them, and every later evaluation is broken.",
                detected="The buffers of normalization layers are checked after a step with a bad batch, even if a "
                "scaler skipped the step.",
                fix="Restore the buffers when a step is skipped (recipes do so), and reload or reset the broken ones.",
                leads_to=(Effect.NONFINITE, Effect.BREAKS_EVALUATION),
                follows_from=(Effect.BLOWS_UP, "loss-scale-collapsed", "cancellation"),
            ),
            Code(
                name="no-valid-targets",
                means="Every target of a batch is `ignore_index`, so the mean loss is 0/0. The gradients are 0 and the "
                "weights are fine.",
                detected="The origin is a loss over targets whose weights add up to 0.",
                fix="Skip such batches, or divide the sum of the losses by at least 1.",
                leads_to=(Effect.NONFINITE,),
            ),
            Code(
                name="step-on-nonfinite-gradients",
                means="Gradients were not finite, but the optimizer stepped anyway: the weights are lost.",
                detected="Gradients were not finite when the optimizer stepped; nothing skipped or undid the step.",
                fix="Check the gradient norm before each step and skip the step if it is not finite; a GradScaler and "
                "roundoff's recipes do that. Then find out where the gradients came from.",
                follows_from=(Effect.BLOWS_UP, Effect.NONFINITE, "loss-scale-collapsed", "cancellation"),
            ),
            Code(
                name="loss-nonfinite",
                means="A loss was NaN or infinite, but no op can be blamed with certainty: there was no snapshot to "
                "replay the step from, or the replay gave a different result.",
                detected="Every loss is checked; this code remains when no replay leads to an op.",
                fix="Give snapshots more memory with `--snapshot-memory`, or record the step: `roundoff record "
                "--steps`.",
                follows_from=(
                    Effect.BLOWS_UP,
                    Effect.NONFINITE,
                    "step-on-nonfinite-gradients",
                    "loss-scale-collapsed",
                    "cancellation",
                ),
            ),
        ),
    ),
)
