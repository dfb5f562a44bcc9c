"""Training steps in eval mode."""

from __future__ import annotations

from collections import defaultdict

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import LoopStep, loop_steps
from roundoff.diagnose.rule import Code, on_first_rank, rule
from roundoff.diagnose.step_flow import op_names
from roundoff.runs import Finding, ForwardDetail, Run, Severity
from roundoff.words import plural

_MIN_STEPS = 2
_RANDOM_OR_BATCH = ("dropout", "bernoulli", "batch_norm", "rrelu")
"""Ops that behave differently in eval mode, or do not run."""
_KINDS = ("Dropout", "BatchNorm", "InstanceNorm", "RReLU")


@rule(
    Code(
        name="eval-mode-training",
        means="Training steps ran with the model in eval mode: dropout is off, and normalization layers do not update "
        "their statistics. Usually `train()` was not called after an evaluation.",
        fix="Call `model.train()` after each evaluation.",
    ),
    order=680,
    checks="training in eval mode",
    needs=[needs.calls("forward", missing="no call of a model was seen")],
)
@on_first_rank
def training_in_eval_mode(run: Run, rank: int) -> Finding | None:
    """Find training steps with a model in eval mode that was in training mode before, or was evaluated first."""
    modes: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    steps = loop_steps(run, rank)
    for loop_step in steps:
        for site, is_training in _modes(loop_step).items():
            modes[site].append((loop_step.step, is_training))
    for site, seen in modes.items():
        first = next((place for place, (_, is_training) in enumerate(seen) if not is_training), None)
        if first is None or (first == 0 and not _was_evaluated_first(run, rank, steps[0])):
            continue
        if not _is_trained(run, rank, site):
            continue
        in_eval = [step for step, is_training in seen[first:] if not is_training]
        if len(in_eval) < min(_MIN_STEPS, len(seen) - first):
            continue
        since_start = first == 0
        matters = _mode_matters(run, rank)
        before = "after an evaluation" if since_start else "the steps before ran in training mode"
        effect = (
            "dropout is off, and normalization layers use their running statistics"
            if matters
            else "nothing in this model depends on it"
        )
        return Finding(
            rule="eval-mode-training",
            severity=Severity.ERROR if matters else Severity.NOTE,
            confidence=0.95,
            step=in_eval[0],
            rank=rank,
            phase="forward",
            site=site,
            title="the model trains in eval mode",
            why=f"{plural(len(in_eval), 'step')} from step {in_eval[0]} on ran with training=False; {before}; {effect}",
            fix="call model.train() after each evaluation, before the next step",
            evidence=({"steps": in_eval[:20], "num_steps": len(in_eval)},),
        )
    return None


def _modes(loop_step: LoopStep) -> dict[str, bool]:
    """Return, for each model that a step trains, whether it ran in training mode at least once."""
    calls = loop_step.calls
    last = max((place for place, call in enumerate(calls) if call.call == "backward"), default=0)
    found: dict[str, bool] = {}
    for call in calls[:last]:
        if call.call == "forward":
            site = str(call.detail_as(ForwardDetail).site)
            found[site] = found.get(site, False) or bool(call.detail_as(ForwardDetail).training)
    return found


def _is_trained(run: Run, rank: int, site: str) -> bool:
    """Say whether an optimizer holds a parameter of a module; a frozen module may be in any mode."""
    parameters = [parameter for structure in run.structures(rank=rank) for parameter in structure.parameters]
    trained = {parameter.site for parameter in parameters if parameter.optimizers}
    if site == "<model>":
        return any(":" not in other for other in trained)
    inside = site if site.endswith(":") else f"{site}."
    return any(other == site or other.startswith(inside) for other in trained)


def _was_evaluated_first(run: Run, rank: int, first: LoopStep) -> bool:
    """Say whether the loop evaluated before it ever trained: it switched from training mode, or computed a loss.

    Otherwise it may train in eval mode on purpose.
    """
    before = [call.call for call in first.calls]
    before = before[: before.index("backward")] if "backward" in before else before
    modes = [call for call in before if call in ("train", "eval")]
    if "train" in modes and modes[-1] == "eval":
        return True
    metrics = run.metrics(rank=rank)
    return "eval" in before and "train" not in before and bool(metrics) and metrics[0].eval_loss is not None


def _mode_matters(run: Run, rank: int) -> bool:
    """Say whether anything in the training behaves differently in eval mode."""
    kinds = {module.kind for structure in run.structures(rank=rank) for module in structure.modules}
    ops = op_names(run, step=0, rank=rank, phase="forward")
    return any(part in op for part in _RANDOM_OR_BATCH for op in ops) or any(
        part in kind for part in _KINDS for kind in kinds
    )
