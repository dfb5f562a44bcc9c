"""The rule for buffers, such as running statistics, that differ between ranks when a forward uses them."""

from __future__ import annotations

from roundoff.diagnose.rank_hashes import hashes_by_step, is_sharded, that_differ
from roundoff.runs import Finding, Run, Severity


def buffers_that_differ(run: Run) -> list[Finding]:
    """Find buffers that are not the same on all ranks at the point of a forward where they have been exchanged."""
    if len(run.ranks) < 2 or is_sharded(run):
        return []
    for step, tensors in hashes_by_step(run, "buffer").items():
        names = that_differ(tensors)
        if names:
            return [_finding(step, names)]
    return []


def _finding(step: int, names: list[str]) -> Finding:
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
