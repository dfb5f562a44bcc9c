"""A failure of roundoff's own code, noted in the run, so that a bug never looks like health."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roundoff.words import join_names, plural

CheckKind: TypeAlias = Literal["probe", "fact", "part", "rule"]

MAX_TRACEBACK_CHARACTERS = 8000
MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One check that raised: a probe, a fact about the training, a part of the watch, or a rule of the diagnosis."""

    check: CheckKind
    name: str
    """Which probe, fact or rule: `half-batch`, `structure`, `overflow`."""
    step: int | None = None
    error: str
    """Type and first line of the exception."""
    traceback: str = ""
    """Python's traceback; the end of it if it is long."""

    @classmethod
    def of(cls, error: BaseException, *, check: CheckKind, name: str, step: int | None = None) -> Failure:
        """Describe an exception that a check raised."""
        first_line = str(error).partition("\n")[0]
        text = "".join(traceback.format_exception(error))
        return cls(
            check=check,
            name=name,
            step=step,
            error=f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__,
            traceback=text[-MAX_TRACEBACK_CHARACTERS:],
        )


def failures_line(failures: Sequence[Failure]) -> str | None:
    """Return the one line that console and page show about failed checks; None if none failed.

    >>> failures_line([Failure(check="probe", name="half-batch", error="KeyError: 'x'")])
    "1 check failed inside roundoff; please report: probe half-batch (KeyError: 'x')"
    """
    if not failures:
        return None
    distinct = list(dict.fromkeys(f"{each.check} {each.name} ({each.error})" for each in failures))
    listed = join_names(distinct, at_most=MAX_LISTED)
    return f"{plural(len(failures), 'check')} failed inside roundoff; please report: {listed}"
