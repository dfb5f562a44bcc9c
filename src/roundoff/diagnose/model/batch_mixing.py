"""Samples of a batch that influence each other."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.layers import first_rank, forward_ops
from roundoff.diagnose.rule import Code, Rule
from roundoff.runs import Finding, JsonValue, Run, Severity
from roundoff.words import join_names


def mixed_batches(run: Run) -> list[Finding]:
    """Find models whose output for one sample changes, in eval mode, when another sample changes."""
    for probe in run.probes():
        changed = probe.get("changed") if probe.get("probe") == "batch-mixing" else None
        if isinstance(changed, list) and changed and not _is_norm_over_batch(run, probe.get("site")):
            return [_finding(run, probe, changed)]
    return []


def _is_norm_over_batch(run: Run, site: JsonValue) -> bool:
    """Say whether the site is a normalization layer configured to use only the statistics of the batch."""
    modules = [module for look in run.structures(rank=first_rank(run)) for module in look.modules]
    return any(module.site == site and module.settings.get("track_running_stats") is False for module in modules)


def _finding(run: Run, probe: dict[str, JsonValue], changed: list[JsonValue]) -> Finding:
    site = probe.get("site")
    step, sample = probe.get("step"), probe.get("sample")
    others = join_names([str(place) for place in changed], at_most=5)
    lines = [op.first.source for op in forward_ops(run) if op.first.site == site and op.first.source]
    return Finding(
        rule="batch-mixing",
        severity=Severity.ERROR,
        confidence=0.95,
        step=step if isinstance(step, int) else None,
        phase="forward",
        site=site if isinstance(site, str) else None,
        source=lines[0] if lines else None,
        title="samples of a batch influence each other",
        why=f"in eval mode, changing only sample {sample} also changes the outputs of sample {others}; it starts in "
        f"{site}",
        fix="check reshape, view and transpose there: they must keep the batch dimension separate (permute before "
        "reshape); recurrent layers and attention need batch_first=True if samples come first",
        evidence=({"sample": sample, "changed": changed},),
    )


RULES = (
    Rule(
        order=460,
        checks="samples of a batch that influence each other",
        find=mixed_batches,
        needs=(needs.probe("batch-mixing"),),
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
