"""What bad values led to; the finding itself only where nobody knows where they came from."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.bad_step import BadStep
from roundoff.diagnose.numbers import plural
from roundoff.runs import Finding, Severity

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
