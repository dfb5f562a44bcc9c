"""The rule for ranks whose weights drift apart: from the start, for want of an exchange, or by what came after it."""

from __future__ import annotations

from roundoff.diagnose.ranks.agreement import differing_names, hashes_by_step, is_parallel, is_sharded, odd_rank
from roundoff.runs import Finding, Run, Severity
from roundoff.words import join_names, plural

# == The rule for buffers, such as running statistics, that differ between ranks when a forward uses them.


def buffers_that_differ(run: Run) -> list[Finding]:
    """Find buffers that are not the same on all ranks at the point of a forward where they have been exchanged."""
    if len(run.ranks) < 2 or is_sharded(run):
        return []
    for step, tensors in hashes_by_step(run, "buffer").items():
        names = differing_names(tensors)
        if names:
            return [_buffers_finding(step, names)]
    return []


def _buffers_finding(step: int, names: list[str]) -> Finding:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return Finding(
        rule="rank-buffers-differ",
        severity=Severity.ERROR,
        confidence=0.95,
        step=step,
        phase="forward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title="buffers differ between ranks",
        why=f"when the forward of step {step} begins, {shown} are not the same on every rank: each keeps statistics of "
        "its own data, and a checkpoint holds those of one",
        fix="leave DistributedDataParallel to broadcast buffers (its default), or use SyncBatchNorm",
        evidence=({"buffers": list(names)},),
    )


RANK_GRADIENT_CODES = (
    "rank-init-mismatch", "module-replaced-after-wrap", "gradients-not-reduced", "rank-clip-mismatch",
    "rank-gradient-divergence",
)  # fmt: skip


def ranks_that_drift_apart(run: Run) -> list[Finding]:
    """Find the first step in which ranks use different gradients, or that they started from different weights.

    Weights that come together again later are averaged by design, and sharded ones differ by design.
    """
    if len(run.ranks) < 2 or is_sharded(run):
        return []
    started_apart = _start_values_that_differ(run)
    used = hashes_by_step(run, "clipped")
    apart = {step: names for step, tensors in used.items() if (names := differing_names(tensors))}
    if started_apart and not _agree_later(run, 0):
        return [_init_mismatch(started_apart)]
    if not apart or _agree_later(run, min(apart)):
        return []
    step = min(apart)
    exchanged = hashes_by_step(run, "gradient").get(step, {})
    after_backward = [name for name in differing_names(exchanged) if name in apart[step]]
    if not after_backward:
        return [_changed_after_exchange(run, step, apart[step], used[step], exchanged)]
    if is_parallel(run) and len(after_backward) < len(exchanged) and step == min(used):
        return [_replaced(step, after_backward)]
    return [_not_reduced(run, step, after_backward, len(exchanged))]


def _start_values_that_differ(run: Run) -> list[str]:
    """Return the parameters whose mean and spread at the start were not the same on every rank."""
    by_name: dict[str, set[tuple[float | None, ...]]] = {}
    for rank in run.ranks:
        for structure in run.structures(rank=rank)[:1]:
            for fact in structure.parameters:
                if fact.name is not None and fact.mean is not None:
                    by_name.setdefault(fact.name, set()).add((fact.mean, fact.std, fact.absmax))
    return [name for name, values in by_name.items() if len(values) > 1]


def _agree_later(run: Run, step: int) -> bool:
    later = {at: tensors for at, tensors in hashes_by_step(run, "parameter").items() if at > step}
    return any(not differing_names(tensors) for tensors in later.values())


def _init_mismatch(names: list[str]) -> Finding:
    return _drift_finding(
        "rank-init-mismatch",
        0,
        None,
        names,
        "ranks start from different weights",
        f"{plural(len(names), 'parameter')} differ between ranks before the first step "
        f"({join_names(names)}), and "
        "exchanging gradients does not bring them together",
        "seed every rank alike before the model is made, or broadcast the weights of rank 0, as "
        "DistributedDataParallel does",
    )


def _replaced(step: int, names: list[str]) -> Finding:
    return _drift_finding(
        "module-replaced-after-wrap",
        step,
        None,
        names,
        "a part of the model was put in after it was made parallel",
        f"the gradients of {join_names(names)} are not exchanged between ranks, and all others are: "
        "DistributedDataParallel knows only the parameters that were there when it was made",
        "change the model first, and make it parallel and give it to the optimizer then",
    )


def _not_reduced(run: Run, step: int, names: list[str], num_gradients: int) -> Finding:
    share = "all" if len(names) == num_gradients else f"{len(names)} of {num_gradients}"
    how = (
        "the parallel model is there, but something else is called or exchanges are switched off (no_sync)"
        if is_parallel(run)
        else "nothing exchanges them: no parallel model is called, and no collective runs between backward and step"
    )
    return _drift_finding(
        "gradients-not-reduced",
        step,
        None,
        names,
        "ranks do not exchange their gradients",
        f"{share} gradients differ between ranks when the optimizer uses them ({join_names(names)}), from "
        f"step {step} "
        f"on; {how}",
        "call the DistributedDataParallel model itself, not model.module; or all_reduce every gradient before the step",
    )


def _changed_after_exchange(
    run: Run, step: int, names: list[str], used: dict[str, dict[int, int]], exchanged: dict[str, dict[int, int]]
) -> Finding:
    """Tell clipping on some ranks from a gradient that was changed on one."""
    changed = {
        rank for name in names for rank, number in used[name].items() if exchanged.get(name, {}).get(rank) != number
    }
    rank = min(changed) if len(changed) == 1 else odd_rank(used[names[0]])
    clips = {of: _clips(run, of, step) for of in run.ranks}
    if any(clips.values()) and len(set(clips.values())) > 1:
        told = ", ".join(f"rank {of}: {clip or 'no clipping'}" for of, clip in clips.items())
        return _drift_finding(
            "rank-clip-mismatch",
            step,
            rank,
            names,
            "ranks clip their gradients differently",
            f"the gradients are the same on every rank after the exchange, and {plural(len(names), 'gradient')} differ "
            f"after clipping ({told})",
            "clip on every rank, with the same limit, after the exchange",
        )
    return _drift_finding(
        "rank-gradient-divergence",
        step,
        rank,
        names,
        f"rank {rank} has another gradient than the others",
        f"after the exchange all ranks have the same gradients; what the optimizer of rank {rank} uses in step {step} "
        f"differs in {join_names(names)}",
        f"look at what rank {rank} does between backward and optimizer.step(): hooks, masks, zeroed gradients",
    )


def _clips(run: Run, rank: int, step: int) -> str | None:
    calls = [call for call in run.calls(rank=rank) if call.call == "clip" and call.step <= step]
    latest = [call for call in calls if call.step == step] or calls[-1:]
    return f"max_norm {latest[-1].detail.get('max_norm')}" if latest else None


def _drift_finding(rule: str, step: int, rank: int | None, names: list[str], title: str, why: str, fix: str) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        confidence=0.95,
        step=step,
        rank=rank,
        phase="optimizer",
        parameter=names[0],
        site=names[0].rpartition(".")[0] or "<model>",
        title=title,
        why=why,
        fix=fix,
        evidence=({"parameters": list(names)},),
    )
