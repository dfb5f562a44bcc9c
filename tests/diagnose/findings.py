"""What tests of rules ask of the findings."""

from __future__ import annotations

from collections.abc import Callable

from roundoff.runs import Finding, Run


def only(find: Callable[[Run], list[Finding]], run: Run) -> Finding:
    """Return the one finding of a rule."""
    (finding,) = find(run)
    return finding
