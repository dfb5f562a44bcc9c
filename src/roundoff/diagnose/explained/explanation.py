"""What a reader of a rule's page learns about one code, and the families that the codes belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a finding with some code means, how it is detected, and what to do about it, for any training."""

    means: str
    fix: str
    detected: str = ""
    """How it is told from the other codes of its rule; a rule with one code says that in its docstring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Codes that a reader looks for in one place."""

    title: str
    explanations: Mapping[str, Explanation]
