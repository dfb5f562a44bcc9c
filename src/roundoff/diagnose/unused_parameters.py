"""The rule for parameters of a parallel model that no loss depends on."""

from __future__ import annotations

from roundoff.diagnose.numbers import plural
from roundoff.diagnose.rank_hashes import is_parallel
from roundoff.runs import Finding, Run, Severity


def unused_parameters(run: Run) -> list[Finding]:
    """Find parameters of a parallel model without gradient on any rank; an error where the exchange waits for them."""
    if len(run.ranks) < 2 or not is_parallel(run):
        return []
    unused: set[str] | None = None
    order: list[str] = []
    for rank in run.ranks:
        facts = [
            fact for s in run.structures(rank=rank)[:1] for fact in s.parameters if fact.requires_grad and fact.name
        ]
        names = [str(fact.name) for fact in facts if not fact.has_gradient and not fact.is_reached]
        order = order or names
        unused = set(names) if unused is None else unused & set(names)
    kept = [name for name in order if unused and name in unused]
    has_failed = any(
        anomaly.kind == "exception" and "reduction" in str(anomaly.detail.get("message"))
        for _, anomaly in run.anomalies()
    )
    return [_finding(kept, has_failed=has_failed)] if kept else []


def _finding(names: list[str], *, has_failed: bool) -> Finding:
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    waits = "the exchange of gradients waits for them and fails in the next step" if has_failed else "they never learn"
    return Finding(
        rule="unused-parameter",
        severity=Severity.ERROR if has_failed else Severity.NOTE,
        confidence=0.95,
        step=0,
        phase="backward",
        site=names[0].rpartition(".")[0] or "<model>",
        parameter=names[0],
        title=f"no loss depends on {plural(len(names), 'parameter')}",
        why=f"backward reaches {shown} on no rank, so that {waits}",
        fix="use their output in the loss, remove them, or freeze them before the model is made parallel; if it "
        "changes from step to step which are used: DistributedDataParallel(..., find_unused_parameters=True)",
        evidence=({"parameters": list(names)},),
    )
