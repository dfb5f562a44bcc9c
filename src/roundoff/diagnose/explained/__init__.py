"""What every code means and what to do about it, in words that hold for any training: the text of its page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roundoff.diagnose.explained.data import DATA
from roundoff.diagnose.explained.explanation import Explanation, Family
from roundoff.diagnose.explained.loop import LOOP
from roundoff.diagnose.explained.model import MODEL
from roundoff.diagnose.explained.numbers import NUMBERS
from roundoff.diagnose.explained.process import PROCESS
from roundoff.diagnose.explained.ranks import RANKS
from roundoff.diagnose.explained.reference import REFERENCE

FAMILIES = (NUMBERS, LOOP, MODEL, DATA, RANKS, PROCESS, REFERENCE)
"""All codes, by what they are about."""

EXPLANATIONS: Mapping[str, Explanation] = MappingProxyType(
    {code: explanation for family in FAMILIES for code, explanation in family.explanations.items()}
)

__all__ = ["EXPLANATIONS", "FAMILIES", "Explanation", "Family"]
