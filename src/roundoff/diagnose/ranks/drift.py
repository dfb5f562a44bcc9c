"""Ranks whose weights or buffers differ: from the start, without a gradient reduction, or by a later change."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.ranks.agreement import (
    differing_names,
    hashes_by_step,
    is_parallel,
    is_sharded,
    odd_rank,
    sharded_parameters,
    start_values,
)
from roundoff.diagnose.rule import Code, error, rule
from roundoff.runs import ClipDetail, Finding, Run
from roundoff.words import join_names, plural


@rule(
    Code(
        name="rank-buffers-differ",
        means="Buffers such as running statistics differ between ranks when a forward uses them.",
        fix="Let DistributedDataParallel broadcast buffers (its default), or use SyncBatchNorm.",
        follows_from=("rank-init-mismatch", "gradients-not-reduced"),
    ),
    order=1040,
    checks="buffers that differ between ranks",
    needs=[
        needs.several_ranks,
        needs.some(lambda run: not is_sharded(run), "the weights are sharded, so ranks differ by design"),
        needs.some(lambda run: hashes_by_step(run, "buffer"), "the model has no buffers"),
    ],
)
def buffers_that_differ(run: Run) -> Finding | None:
    """Find buffers that are not the same on all ranks at the start of a forward, where they were just broadcast."""
    if len(run.ranks) < 2 or is_sharded(run):
        return None
    for step, tensors in hashes_by_step(run, "buffer").items():
        names = differing_names(tensors)
        if names:
            return _buffers_finding(step, names)
    return None


def _buffers_finding(step: int, names: list[str]) -> Finding:
    return error(
        rule="rank-buffers-differ",
        confidence=0.95,
        step=step,
        phase="forward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title="buffers differ between ranks",
        why=f"when the forward of step {step} begins, {join_names(names)} {'is' if len(names) == 1 else 'are'} not the "
        "same on every rank: each rank keeps the statistics of its own data, and a checkpoint contains those of one "
        "rank",
        fix="let DistributedDataParallel broadcast buffers (its default), or use SyncBatchNorm",
        evidence=({"buffers": list(names)},),
    )


@rule(
    Code(
        name="rank-init-mismatch",
        means="Ranks start from different weights. Summing their gradients does not make them one model.",
        detected="The mean, standard deviation and largest magnitude of every initial parameter are compared between "
        "ranks, and the weights do not agree later either.",
        fix="Set the same seed on all ranks before the model is built, or broadcast the weights from rank 0.",
    ),
    Code(
        name="module-replaced-after-wrap",
        means="A layer was replaced after the model was wrapped, so its gradients are not reduced.",
        detected="In the first step the gradients of some parameters differ between ranks after backward, while all "
        "others agree.",
        fix="Change the model first, then wrap it.",
    ),
    Code(
        name="gradients-not-reduced",
        means="Each rank steps on the gradients of its own data: they are never reduced. Often `model.module` is "
        "called instead of the wrapped model.",
        detected="Hashes of the gradients that the optimizer uses are compared between ranks: they differ right after "
        "backward.",
        fix="Call the wrapped model itself, outside of `no_sync`.",
        follows_from=("unused-parameter",),
    ),
    Code(
        name="rank-clip-mismatch",
        means="Gradients agree after the reduction but differ after clipping: not every rank clips, or the limits "
        "differ.",
        detected="Gradients agree after backward but differ when the optimizer uses them, and the ranks clipped "
        "differently.",
        fix="Clip on all ranks, with the same limit, after the reduction.",
    ),
    Code(
        name="rank-gradient-divergence",
        means="A rank uses a different gradient from the others, although gradients were reduced: something changed it "
        "afterwards.",
        detected="Gradients agree after backward but differ when the optimizer uses them, and clipping does not "
        "explain it.",
        fix="Look for hooks and code after backward that depend on the rank.",
    ),
    order=1020,
    checks="ranks that drift apart",
    needs=[
        needs.several_ranks,
        needs.some(lambda run: not is_sharded(run), "the weights are sharded, so ranks differ by design"),
    ],
)
def ranks_that_drift_apart(run: Run) -> Finding | None:
    """Find ranks that start from different weights, or the first step in which they use different gradients.

    Weights that agree again later are averaged by design, and sharded ones differ by design.
    """
    if len(run.ranks) < 2 or is_sharded(run):
        return None
    started_apart = _start_values_that_differ(run)
    used = hashes_by_step(run, "clipped")
    apart = {step: names for step, tensors in used.items() if (names := differing_names(tensors))}
    if started_apart and not _agree_later(run, 0):
        return _drift_finding(
            started_apart,
            rule="rank-init-mismatch",
            step=0,
            title="ranks start from different weights",
            why=f"{plural(len(started_apart), 'parameter')} differ between ranks before the first step "
            f"({join_names(started_apart)}), and reducing gradients does not bring them together",
            fix="set the same seed on every rank before the model is built, or broadcast the weights of rank 0, as "
            "DistributedDataParallel does",
        )
    if not apart or _agree_later(run, min(apart)):
        return None
    step = min(apart)
    exchanged = hashes_by_step(run, "gradient").get(step, {})
    after_backward = [name for name in differing_names(exchanged) if name in apart[step]]
    if not after_backward:
        return _changed_after_exchange(run, step, apart[step], used[step], exchanged)
    if is_parallel(run) and len(after_backward) < len(exchanged) and step == min(used):
        return _drift_finding(
            after_backward,
            rule="module-replaced-after-wrap",
            step=step,
            title="a part of the model was added after it was wrapped",
            why=f"the gradients of {join_names(after_backward)} are not reduced, while all others are: "
            "DistributedDataParallel only knows the parameters that existed when it was created",
            fix="change the model first, then wrap it and build the optimizer",
        )
    return _not_reduced(run, step, after_backward, len(exchanged))


def _start_values_that_differ(run: Run) -> list[str]:
    """Return the parameters whose initial mean, deviation or largest magnitude differ between ranks."""
    shards = sharded_parameters(run)
    found = []
    for name, by_rank in start_values(run).items():
        values = {(fact.mean, fact.std, fact.absmax) for fact in by_rank.values() if fact.mean is not None}
        if len(values) > 1 and name not in shards:
            found.append(name)
    return found


def _agree_later(run: Run, step: int) -> bool:
    later = {at: tensors for at, tensors in hashes_by_step(run, "parameter").items() if at > step}
    return any(not differing_names(tensors) for tensors in later.values())


def _not_reduced(run: Run, step: int, names: list[str], num_gradients: int) -> Finding:
    share = "all" if len(names) == num_gradients else f"{len(names)} of {num_gradients}"
    how = (
        "there is a parallel model, but something else is called, or reductions are switched off (no_sync)"
        if is_parallel(run)
        else "nothing reduces them: no parallel model is called, and no collective runs between backward and step"
    )
    return _drift_finding(
        names,
        rule="gradients-not-reduced",
        step=step,
        title="gradients are not reduced between ranks",
        why=f"from step {step} on, {share} gradients differ between ranks when the optimizer uses them "
        f"({join_names(names)}); {how}",
        fix="call the DistributedDataParallel model itself, not model.module; or all_reduce every gradient before the "
        "step",
    )


def _changed_after_exchange(
    run: Run, step: int, names: list[str], used: dict[str, dict[int, int]], exchanged: dict[str, dict[int, int]]
) -> Finding:
    """Distinguish clipping on some ranks from a gradient that was changed on one rank."""
    changed = {
        rank for name in names for rank, number in used[name].items() if exchanged.get(name, {}).get(rank) != number
    }
    rank = min(changed) if len(changed) == 1 else odd_rank(used[names[0]])
    clips = {of: _clips(run, of, step) for of in run.ranks}
    if any(clips.values()) and len(set(clips.values())) > 1:
        clipping = ", ".join(f"rank {of}: {clip or 'no clipping'}" for of, clip in clips.items())
        return _drift_finding(
            names,
            rule="rank-clip-mismatch",
            step=step,
            rank=rank,
            title="ranks clip their gradients differently",
            why=f"the gradients are the same on every rank after the reduction, but {plural(len(names), 'gradient')} "
            f"{'differs' if len(names) == 1 else 'differ'} after clipping ({clipping})",
            fix="clip on every rank, with the same limit, after the reduction",
        )
    return _drift_finding(
        names,
        rule="rank-gradient-divergence",
        step=step,
        rank=rank,
        title=f"rank {rank} uses different gradients from the other ranks",
        why=f"after the reduction all ranks have the same gradients, but those that the optimizer of rank {rank} uses "
        f"in step {step} differ in {join_names(names)}",
        fix=f"check what rank {rank} does between backward and optimizer.step(): hooks, masks, zeroed gradients",
    )


def _clips(run: Run, rank: int, step: int) -> str | None:
    calls = [call for call in run.calls(rank=rank) if call.call == "clip" and call.step <= step]
    latest = [call for call in calls if call.step == step] or calls[-1:]
    return f"max_norm {latest[-1].detail_as(ClipDetail).max_norm}" if latest else None


def _drift_finding(
    names: list[str], *, rule: str, step: int, title: str, why: str, fix: str, rank: int | None = None
) -> Finding:
    return error(
        rule=rule,
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
