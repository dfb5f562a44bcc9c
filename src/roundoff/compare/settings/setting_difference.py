"""One setting in which two trainings differ, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from roundoff.runs import JsonValue

_MAX_PLACES = 3
_MAX_CHARACTERS = 80


class SettingKind(StrEnum):
    """What a setting is a setting of."""

    LOSS = "loss"
    HYPERPARAMETER = "hyperparameter"
    MODEL = "model"
    RECIPE = "recipe"
    LOOP = "loop"
    DATA = "data"
    START_VALUE = "start value"
    SEED = "seed"
    RANKS = "ranks"
    ENVIRONMENT = "environment"
    PACKAGE = "package"
    HARDWARE = "hardware"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting that differs."""

    what: str
    """In words: `eps of LayerNorm`, `beta2 of AdamW`."""
    reference: JsonValue
    """None where that run does not have it."""
    candidate: JsonValue
    kind: SettingKind
    suspicion: float
    """From 0 to 1: how likely it is that a different result comes from it."""
    places: tuple[str, ...] = field(default=())
    """The modules or parameters it is about, where there are some."""

    @property
    def text(self) -> str:
        """The difference as one line.

        >>> SettingDifference(what="beta2", reference=0.999, candidate=0.9, kind=SettingKind.LOSS, suspicion=1).text
        'beta2: 0.999 against 0.9'
        """
        return f"{self.what}{self._where}: {_format_value(self.reference)} against {_format_value(self.candidate)}"

    @property
    def _where(self) -> str:
        if not self.places:
            return ""
        more = len(self.places) - _MAX_PLACES
        return f" ({', '.join(self.places[:_MAX_PLACES])}{f' and {more} more' if more > 0 else ''})"


def differing_values(
    reference: Mapping[str, JsonValue], candidate: Mapping[str, JsonValue], *, leave_out: Sequence[str] = ()
) -> list[tuple[str, JsonValue, JsonValue]]:
    """Return name and both values of what differs, in the order of the names in the two; None where one has it not."""
    names = [name for name in dict.fromkeys([*reference, *candidate]) if name not in leave_out]
    pairs = [(name, reference.get(name), candidate.get(name)) for name in names]
    return [
        (name, reference_value, candidate_value)
        for name, reference_value, candidate_value in pairs
        if not _equal(reference_value, candidate_value)
    ]


def group_by_place(differences: Iterable[SettingDifference]) -> list[SettingDifference]:
    """Make one of those that are the same but for their place."""
    found: dict[str, list[SettingDifference]] = {}
    for difference in differences:
        key = repr((difference.what, difference.reference, difference.candidate, difference.kind))
        found.setdefault(key, []).append(difference)
    return [
        SettingDifference(
            what=group[0].what,
            reference=group[0].reference,
            candidate=group[0].candidate,
            kind=group[0].kind,
            suspicion=max(difference.suspicion for difference in group),
            places=tuple(place for difference in group for place in difference.places),
        )
        for group in found.values()
    ]


def _equal(reference: JsonValue, candidate: JsonValue) -> bool:
    """Say whether two values are the same; a list and a tuple are, 0 and False are not, and NaN is itself."""
    if isinstance(reference, bool) or isinstance(candidate, bool):
        return reference is candidate
    if isinstance(reference, list | tuple) and isinstance(candidate, list | tuple):
        return len(reference) == len(candidate) and all(map(_equal, reference, candidate))
    return reference == candidate or (reference != reference and candidate != candidate)


def _format_value(value: JsonValue) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 4]} ..."
