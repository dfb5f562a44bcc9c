"""What separates two engines that should agree, as a finding."""

from __future__ import annotations

from roundoff.compare.logprobs.explanation import Cause
from roundoff.compare.logprobs.logprob_comparison import LogprobComparison
from roundoff.diagnose.rule import error, warning
from roundoff.runs import Finding

_WARNINGS = (Cause.HEAD_DTYPE, Cause.ROUTER_FLIPS)
"""Differences that come of rounding, and can be made smaller."""


def finding_about_engines(comparison: LogprobComparison) -> Finding | None:
    """Return why the engines differ, or None if their formats explain it."""
    found = comparison.explanation
    if found is None:
        return None
    make = warning if found.cause in _WARNINGS else error
    return make(
        rule="engines-disagree",
        confidence=found.confidence,
        title=found.title,
        why="\n".join(found.proof),
        fix=found.fix,
        evidence=(
            {
                "cause": str(found.cause),
                "before_nats": found.before,
                "after_nats": found.after,
                "expected_nats": comparison.noise.expected,
                "limit_nats": comparison.noise.limit,
                **found.numbers,
            },
        ),
    )
