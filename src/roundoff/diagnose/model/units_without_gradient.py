"""Units of a layer that never get a gradient while others of the same layer do."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.model.stuck_units import HARD_GATES, gated_sites
from roundoff.diagnose.parameter_histories import parameter_histories
from roundoff.diagnose.rule import Code, note, rule, warning
from roundoff.diagnose.step_flow import PRODUCTS, first_rank, forward_ops
from roundoff.runs import Finding, GradientRowsProbe, RowsWithoutGradient, Run, Structure
from roundoff.runs.files.plain_json import object_of
from roundoff.words import join_names, join_words, plural

_MIN_SHARE = 1 / 16
"""A vocabulary is often rounded up by a few rows that no token uses."""
_MIN_ROWS, _MIN_NEAR_GATES, _MIN_GATED = 2, 4, 8
"""Rows next to each other: in any model, in one with a ReLU anywhere, and right before a ReLU."""
_MAX_RUNS = 4
_MANY = 0.25
"""A share that counts also where the rows are scattered."""
_MIN_STUCK, _MIN_MEASURED = 2, 10
"""Weights without a gradient, and steps in which that was measured."""
_EARLY, _LATE = 0.1, 0.3
"""How far into the training the last of these steps must be, for a note and for a warning."""
_RECURRENT = ("lstm", "gru", "rnn", "cell")


@rule(
    Code(
        name="units-without-gradient",
        means="Some units of a layer (heads, features, outputs) get a gradient of exactly 0 in every step, while "
        "others of the same layer learn: their results are cut off, masked, overwritten or multiplied by 0.",
        fix="Follow what the layer returns: a slice that is too short, a mask that never changes, a head that is not "
        "concatenated. If the units are not needed, make the layer smaller.",
        follows_from=(
            "dead-units",
            "zero-init",
            "graph-cut",
            "constant-softmax",
            "eval-mode-training",
            "gradient-underflow",
            "terms-cancel",
        ),
    ),
    order=445,
    checks="units of a layer that never get a gradient",
    needs=[
        needs.structure,
        needs.recorded_first_step,
        needs.probe(GradientRowsProbe, missing="fewer than 10 steps were watched in full"),
    ],
)
def idle_units(run: Run) -> Finding | None:
    """Find rows of weights whose gradient is exactly 0 in all of the first steps, while that of other rows is not.

    Rows of embeddings belong to tokens, which may be rare. Behind a ReLU single units may be inactive; those of a whole
    range are not by chance. Rows that get their first gradient late, such as those of rare actions, do not count.
    """
    probes = run.probes(GradientRowsProbe)
    looks = run.structures(rank=first_rank(run))
    if len(probes) < 2 or not looks:
        return None
    if (stuck := _stuck_weights(run, looks[0])) is not None:
        return stuck
    before = {weight.name: weight for weight in probes[-2].weights}
    ops = forward_ops(run)
    gated = gated_sites(ops)
    min_run = _MIN_NEAR_GATES if any(op.bare in HARD_GATES for op in ops) else 1
    made = {(op.first.site, size) for op in ops if op.bare in PRODUCTS for size in op.outputs[0].shape[1:]}
    sites = {p.name: p.site for look in looks for p in look.parameters}
    found = []
    for weight in probes[-1].weights:
        site = sites.get(weight.name, "")
        if (site, weight.num_rows) not in made:
            continue  # not the units of a layer: positions, codes, prototypes
        if (
            before.get(weight.name) == weight
            and not _is_left_out(looks[0], site)
            and _counts(weight, _MIN_GATED if site in gated else min_run)
        ):
            found.append(weight)
    return _finding(probes[-1], found, sites) if found else None


def _stuck_weights(run: Run, look: Structure) -> Finding | None:
    """Find several whole weights whose gradient is exactly 0 in every measured step until late, while others learn."""
    rank = first_rank(run)
    histories, num_steps = parameter_histories(run, rank), max((m.step for m in run.metrics(rank=rank)), default=0) + 1
    weights = [p for p in look.parameters if p.name in histories and p.is_reached and p.optimizers and len(p.shape) > 1]
    stuck = [p for p in weights if histories[str(p.name)].is_always_zero]
    first = histories[str(stuck[0].name)] if stuck else None
    if first is None or len(stuck) < _MIN_STUCK or len(stuck) == len(weights):
        return None
    if len(first.steps) < _MIN_MEASURED or first.steps[-1] < _EARLY * num_steps:
        return None
    names = [str(p.name) for p in stuck]
    made = warning if first.steps[-1] >= _LATE * num_steps else note  # the weight of a term may be raised from 0
    return made(
        rule="units-without-gradient",
        confidence=0.85,
        step=int(first.steps[0]),
        phase="backward",
        site=stuck[0].site,
        parameter=names[0],
        title=f"the gradients of {join_names(names)} are exactly 0",
        why=f"the loss depends on them, but in all {plural(len(first.steps), 'measured step')} up to step "
        f"{first.steps[-1]} what reached them was exactly 0, while other weights had gradients: something multiplies "
        "it by 0, or two terms cancel",
        fix="follow the loss back to these weights: a factor or mask that is always 0, or a difference of two results "
        "of the same weights, such as a log-probability and an old one that should have been kept, detached",
        evidence=({"weights": [*names], "steps": len(first.steps)},),
    )


def _is_left_out(look: Structure, site: str) -> bool:
    """Say whether rows of the module are tokens, or gates that a short sequence does not use."""
    modules = [module for module in look.modules if module.site == site]
    return any("num_embeddings" in m.settings or any(word in m.kind.lower() for word in _RECURRENT) for m in modules)


def _num_idle(weight: RowsWithoutGradient) -> int:
    return sum(end - first for first, end in weight.rows)


def _counts(weight: RowsWithoutGradient, min_run: int) -> bool:
    """Say whether the rows are too many, and too close to each other, to be inactive by chance."""
    num, longest = _num_idle(weight), max(end - first for first, end in weight.rows)
    if num < max(_MIN_ROWS, _MIN_SHARE * weight.num_rows):
        return False
    is_range = len(weight.rows) <= _MAX_RUNS and num >= _MIN_ROWS * len(weight.rows)
    if min_run > 1:
        return is_range and longest >= min_run
    return is_range or num >= _MANY * weight.num_rows


def _finding(probe: GradientRowsProbe, found: list[RowsWithoutGradient], sites: dict[str | None, str]) -> Finding:
    first = max(found, key=lambda weight: _num_idle(weight) / weight.num_rows)
    num = _num_idle(first)
    others = f"; the same is true of {plural(len(found) - 1, 'other weight')}" if len(found) > 1 else ""
    return warning(
        rule="units-without-gradient",
        confidence=0.85,
        step=0,
        phase="backward",
        site=sites.get(first.name),
        parameter=first.name,
        title=f"{num} of the {first.num_rows} units of {sites.get(first.name)} never get a gradient",
        why=f"the gradient of {_describe_rows(first)} of {first.name} was exactly 0 in all "
        f"{plural(probe.num_steps, 'watched step')}, while other rows had one{others}. What these units compute "
        "reaches no loss",
        fix="follow what the layer returns to where these units are dropped: a slice, a mask, a factor of 0, a head "
        "that is left out; if they are not needed, make the layer smaller",
        evidence=tuple(object_of(weight) for weight in found),
    )


def _describe_rows(weight: RowsWithoutGradient) -> str:
    runs = [f"{first}" if end == first + 1 else f"{first} to {end - 1}" for first, end in weight.rows]
    return f"rows {join_words(runs)}" if len(runs) <= _MAX_RUNS else plural(_num_idle(weight), "row")
