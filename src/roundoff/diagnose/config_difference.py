"""The rule for two runs that were not told the same: a list of what differs, the most suspicious first."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.compare.settings import Difference
from roundoff.diagnose.numbers import plural
from roundoff.runs import Finding, JsonValue, Severity

_MATTERS = 0.5
"""Differences at least as suspicious as that make a warning of it, others a note."""
_LEAST = 0.1
"""Differences less suspicious than that cannot matter, and are not told by themselves."""
_MOST_LINES = 8


def config_difference(differences: Sequence[Difference]) -> Finding | None:
    """Say what the candidate was told that the reference was not; None where nothing differs that could matter.

    Args:
        differences: as `differing_settings` gives them, the most suspicious first.
    """
    told = [difference for difference in differences if difference.suspicion >= _LEAST]
    if not told:
        return None
    return Finding(
        rule="config-difference",
        severity=Severity.WARNING if told[0].suspicion >= _MATTERS else Severity.NOTE,
        confidence=told[0].suspicion,
        title=_title(told),
        why="\n".join(_lines(told)),
        fix=f"make {told[0].what} the same in both runs, and compare again",
        site=_place(told[0]),
        evidence=tuple(_as_object(difference) for difference in differences),
    )


def _title(told: list[Difference]) -> str:
    more = len(told) - 1
    return f"the runs differ in {told[0].what}" + (f" and in {plural(more, 'other setting')}" if more else "")


def _lines(told: list[Difference]) -> list[str]:
    lines = [f"{difference.text} ({difference.kind})" for difference in told[:_MOST_LINES]]
    more = len(told) - _MOST_LINES
    return [*lines, f"{plural(more, 'more difference')}"] if more > 0 else lines


def _place(difference: Difference) -> str | None:
    return difference.places[0] if len(difference.places) == 1 else None


def _as_object(difference: Difference) -> JsonValue:
    return {
        "what": difference.what,
        "reference": difference.reference,
        "candidate": difference.candidate,
        "kind": str(difference.kind),
        "suspicion": difference.suspicion,
        "places": list(difference.places),
    }
