"""Layers that depend on a whole batch: meaningless statistics of normalization layers, and samples that mix."""

from __future__ import annotations

import math

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, place_of, rule, warning
from roundoff.diagnose.step_flow import first_rank, forward_ops, op_names
from roundoff.runs import BatchMixingProbe, Event, Finding, ModuleFacts, Run
from roundoff.words import join_names, plural

_MAX_TINY_SAMPLES = 2
_MAX_TINY_VALUES = 4
_MIN_LOOKS = 3
_OF_EACH_SAMPLE = ("softmax", "log_softmax", "softmin", "normalize", "norm", "vector_norm", "layer_norm", "cumsum")
"""Functions that are computed over the numbers of one sample, or over its places."""

_running_statistics = needs.module(
    lambda module: module.has_start_statistics is not None, "no layer has running statistics"
)


@rule(
    Code(
        name="tiny-norm-batch",
        means="A batch normalization computes its statistics from two samples or a handful of values, so they are "
        "noise.",
        fix="Use a larger batch, SyncBatchNorm, or a normalization that does not use other samples.",
    ),
    order=1420,
    checks="batch statistics of too few values",
    needs=[
        needs.recorded_steps,
        needs.some(
            lambda run: any("batch_norm" in name for name in op_names(run)),
            "no batch normalization was recorded",
        ),
    ],
)
@on_first_rank
def tiny_norm_batches(run: Run, rank: int) -> Finding | None:
    """Find batch normalizations whose statistics come from two samples or a handful of values."""
    modules = [module for structure in run.structures(rank=rank) for module in structure.modules]
    norms = {module.site: module.kind for module in modules if module.training and "Norm" in module.kind}
    tiny = [
        [event for event in _norm_events(run, rank, step) if _is_tiny(event, norms.get(event.site))]
        for step in run.steps[:2]
    ]
    if tiny and all(tiny):
        return _tiny_finding(tiny[0])
    return None


def _norm_events(run: Run, rank: int, step: int) -> list[Event]:
    events = [event for event in run.iter_events(step=step, rank=rank, phase="forward") if event.output == "output0"]
    return sorted((event for event in events if "batch_norm" in event.op), key=lambda event: event.order)


def _is_tiny(event: Event, kind: str | None) -> bool:
    if kind is None or len(event.shape) < 2:
        return False
    if kind.startswith("InstanceNorm"):  # the samples are channels to the op
        return math.prod(event.shape[2:]) <= _MAX_TINY_SAMPLES
    return event.shape[0] <= _MAX_TINY_SAMPLES or _num_values(event) <= _MAX_TINY_VALUES


def _num_values(event: Event) -> int:
    return event.num_elements // max(event.shape[1], 1)


def _tiny_finding(events: list[Event]) -> Finding:
    first = events[0]
    sites = list(dict.fromkeys(event.site for event in events))
    more = f" (and in {plural(len(sites) - 1, 'more layer')})" if len(sites) > 1 else ""
    return warning(
        rule="tiny-norm-batch",
        confidence=0.85,
        **place_of(first),
        title=f"{first.site} normalizes over {plural(first.shape[0], 'sample')}",
        why=f"mean and variance of each channel{more} come from {plural(_num_values(first), 'value')} of "
        f"{plural(first.shape[0], 'sample')}: they are noise, and evaluation uses different ones",
        fix="use a larger batch, SyncBatchNorm over several ranks, or a normalization that does not use other "
        "samples: GroupNorm, LayerNorm",
        evidence=({"sites": [*sites], "shape": list(first.shape)},),
    )


@rule(
    Code(
        name="running-stats-frozen",
        means="A normalization layer never updates its running statistics: its momentum is 0, or it is in eval mode "
        "while the model trains.",
        fix="Set a momentum, or call `model.train()` after everything that calls `eval()`.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
        follows_from=("eval-mode-training",),
    ),
    order=610,
    checks="normalization layers that never update their statistics",
    needs=[needs.structure, _running_statistics],
)
@on_first_rank
def frozen_statistics(run: Run, rank: int) -> Finding | None:
    """Find layers that never learned any statistics: with momentum 0, or in eval mode while the model trains.

    A layer in eval mode whose parameters are frozen too is part of a body that is meant to stay as it is.
    """
    for structure in run.structures(rank=rank):
        norms = [module for module in structure.modules if module.has_start_statistics]
        is_trained = any(module.training for module in structure.modules)
        by_momentum = [m for m in norms if m.settings.get("momentum") == 0 and m.training]
        frozen = {p.site for p in structure.parameters if not p.requires_grad}
        by_mode = [m for m in norms if not m.training and m.site not in frozen] if is_trained else []
        found = by_momentum or by_mode
        if found:
            return _frozen_finding(found, structure.step, rank, is_momentum=bool(by_momentum))
    return None


@rule(
    Code(
        name="running-stats-lost",
        means="A normalization layer updates its statistics in every forward, but other code writes the old ones back.",
        fix="Keep the buffers as the forward leaves them; restore them only when a step is skipped.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
        follows_from=("zero-init", "dead-units", "constant-input"),
    ),
    order=1410,
    checks="normalization layers whose statistics are overwritten",
    needs=[needs.structure, _running_statistics, needs.recorded_steps],
)
@on_first_rank
def lost_statistics(run: Run, rank: int) -> Finding | None:
    """Find layers that run in training mode, but whose statistics are the same again before every forward."""
    structures = run.structures(rank=rank)
    norms = {module.site: module for structure in structures for module in structure.modules if _learns(module)}
    used = _sites_in_use(run, rank) if norms else set()
    looks = _hashes_by_buffer(run, rank) if used else {}
    found = [site for site in norms if site in used and _stays(looks.get(_buffer(site), []))]
    if found:
        step = next(step for step, _ in looks[_buffer(found[0])][1:])
        sites, num_looks = found, len(looks[_buffer(found[0])])
        more = f" (and {len(sites) - 1} more: {_join_sites(sites[1:])})" if len(sites) > 1 else ""
        return error(
            rule="running-stats-lost",
            confidence=0.95,
            step=step,
            rank=rank,
            phase="forward",
            site=sites[0],
            title=f"the running statistics of {sites[0]} are lost after every forward",
            why=f"the layer{more} runs in training mode and updates them, but running_mean was bitwise the same before "
            f"each of {num_looks} forwards: other code writes the old values back, or the forward runs on a copy",
            fix="keep the buffers as the forward leaves them; restore them only when a step is skipped",
            evidence=({"sites": [*sites], "num_looks": num_looks},),
        )
    return None


def _learns(module: ModuleFacts) -> bool:
    if module.has_start_statistics is None or not module.training:
        return False
    return module.settings.get("momentum") != 0 and module.settings.get("track_running_stats") is not False


def _sites_in_use(run: Run, rank: int) -> set[str]:
    events = (event for step in run.steps for event in run.iter_events(step=step, rank=rank, phase="forward"))
    return {event.site for event in events if "batch_norm" in event.op}


def _hashes_by_buffer(run: Run, rank: int) -> dict[str, list[tuple[int, int]]]:
    table = run.hashes(rank=rank)
    table = table.take(table.texts("kind").equals("buffer"))
    found: dict[str, list[tuple[int, int]]] = {}
    for step, name, number in zip(*(table[name].to_list() for name in ("step", "name", "hash")), strict=True):
        found.setdefault(name, []).append((step, number))
    return found


def _buffer(site: str) -> str:
    """Return the name of a layer's running mean in its model."""
    path = site.rpartition(":")[2]
    return "running_mean" if path.startswith("<") or not path else f"{path}.running_mean"


def _stays(looks: list[tuple[int, int]]) -> bool:
    return len({step for step, _ in looks}) >= _MIN_LOOKS and len({number for _, number in looks}) == 1


def _frozen_finding(norms: list[ModuleFacts], step: int, rank: int, *, is_momentum: bool) -> Finding:
    first = norms[0]
    why = "its momentum is 0" if is_momentum else "it is in eval mode while the model trains"
    more = (
        f", like that of {len(norms) - 1} more ({_join_sites([m.site for m in norms[1:]])})" if len(norms) > 1 else ""
    )
    so = "evaluation normalizes with them" if is_momentum else "training and evaluation normalize with them"
    return error(
        rule="running-stats-frozen",
        confidence=0.95,
        step=step,
        rank=rank,
        phase="forward",
        site=first.site,
        title=f"the running statistics of {first.site} never change",
        why=f"{why}{more}; mean and variance keep their initial values 0 and 1, and {so}",
        fix="set a momentum: nn.BatchNorm2d(..., momentum=0.1)"
        if is_momentum
        else "call model.train() after everything that calls eval(); freeze only layers with learned statistics",
        evidence=({"sites": [module.site for module in norms], "momentum": first.settings.get("momentum")},),
    )


def _join_sites(sites: list[str]) -> str:
    return ", ".join(sites[:3]) + (", ..." if len(sites) > 3 else "")


@rule(
    Code(
        name="batch-mixing",
        means="In eval mode, the output for one sample depends on other samples of the batch: a reshape or a recurrent "
        "layer treats the batch dimension as another one.",
        fix="Keep the batch dimension separate: permute before reshape, or set `batch_first=True`.",
        follows_from=("axes-confused",),
    ),
    order=460,
    checks="samples of a batch that influence each other",
    needs=[needs.probe(BatchMixingProbe)],
)
def mixed_batches(run: Run) -> Finding | None:
    """Find models whose output for one sample changes, in eval mode, when another sample changes."""
    for probe in run.probes(BatchMixingProbe):
        if probe.changed and not is_over_batch(probe) and not _is_norm_over_batch(run, probe.site):
            return _finding(run, probe)
    return None


def is_over_batch(probe: BatchMixingProbe) -> bool:
    """Say whether samples mix because a softmax or a norm of each sample is computed over the batch instead."""
    return bool(probe.changed) and probe.function in _OF_EACH_SAMPLE


def _is_norm_over_batch(run: Run, site: str | None) -> bool:
    """Say whether the site is a normalization layer configured to use only the statistics of the batch."""
    modules = [module for look in run.structures(rank=first_rank(run)) for module in look.modules]
    return any(module.site == site and module.settings.get("track_running_stats") is False for module in modules)


def _finding(run: Run, probe: BatchMixingProbe) -> Finding:
    others = join_names([str(place) for place in probe.changed], at_most=5)
    lines = [op.first.source for op in forward_ops(run) if op.first.site == probe.site and op.first.source]
    return error(
        rule="batch-mixing",
        confidence=0.95,
        step=probe.step,
        phase="forward",
        site=probe.site,
        source=probe.source or (lines[0] if lines else None),
        title="samples of a batch influence each other",
        why=f"in eval mode, changing only sample {probe.sample} also changes the outputs of sample {others}; it starts "
        f"in {probe.site}",
        fix="check reshape, view and transpose there: they must keep the batch dimension separate (permute before "
        "reshape); recurrent layers and attention need batch_first=True if samples come first",
        evidence=({"sample": probe.sample, "changed": list(probe.changed)},),
    )
