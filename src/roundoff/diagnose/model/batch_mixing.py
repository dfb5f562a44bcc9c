"""Samples of a batch that influence each other."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.layers import first_rank, forward_ops
from roundoff.diagnose.rule import Code, Rule
from roundoff.runs import BatchMixingProbe, Finding, Run, Severity
from roundoff.words import join_names


def mixed_batches(run: Run) -> list[Finding]:
    """Find models whose output for one sample changes, in eval mode, when another sample changes."""
    for probe in run.probes(BatchMixingProbe):
        if probe.changed and not _is_norm_over_batch(run, probe.site):
            return [_finding(run, probe)]
    return []


def _is_norm_over_batch(run: Run, site: str | None) -> bool:
    """Say whether the site is a normalization layer configured to use only the statistics of the batch."""
    modules = [module for look in run.structures(rank=first_rank(run)) for module in look.modules]
    return any(module.site == site and module.settings.get("track_running_stats") is False for module in modules)


def _finding(run: Run, probe: BatchMixingProbe) -> Finding:
    others = join_names([str(place) for place in probe.changed], at_most=5)
    lines = [op.first.source for op in forward_ops(run) if op.first.site == probe.site and op.first.source]
    return Finding(
        rule="batch-mixing",
        severity=Severity.ERROR,
        confidence=0.95,
        step=probe.step,
        phase="forward",
        site=probe.site,
        source=lines[0] if lines else None,
        title="samples of a batch influence each other",
        why=f"in eval mode, changing only sample {probe.sample} also changes the outputs of sample {others}; it starts "
        f"in {probe.site}",
        fix="check reshape, view and transpose there: they must keep the batch dimension separate (permute before "
        "reshape); recurrent layers and attention need batch_first=True if samples come first",
        evidence=({"sample": probe.sample, "changed": list(probe.changed)},),
    )


RULES = (
    Rule(
        order=460,
        checks="samples of a batch that influence each other",
        find=mixed_batches,
        needs=(needs.probe(BatchMixingProbe),),
        codes=(
            Code(
                name="batch-mixing",
                means="In eval mode, the output for one sample depends on other samples of the batch: a reshape or a "
                "recurrent layer treats the batch dimension as another one.",
                fix="Keep the batch dimension separate: permute before reshape, or set `batch_first=True`.",
            ),
        ),
    ),
)
