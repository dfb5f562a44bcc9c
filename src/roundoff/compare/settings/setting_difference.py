"""One setting in which two trainings differ, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

from roundoff.runs import JsonValue
from roundoff.words import join_names

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
    EVALUATION = "evaluation"
    START_VALUE = "start value"
    SEED = "seed"
    RANKS = "ranks"
    ENVIRONMENT = "environment"
    PACKAGE = "package"
    HARDWARE = "hardware"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One setting that differs."""

    what: str
    """In words: `eps of LayerNorm`, `beta2 of AdamW`."""
    reference: JsonValue
    """None if that run does not have it."""
    candidate: JsonValue
    _: KW_ONLY
    kind: SettingKind
    suspicion: float
    """From 0 to 1: how likely it is that a different result comes from it."""
    places: tuple[str, ...] = ()
    """The modules or parameters it is about, if any."""
    about: tuple[str, ...] = ()
    """The same where the values name them already."""

    @property
    def text(self) -> str:
        """The difference as one line.

        >>> SettingDifference("beta2", 0.999, 0.9, kind=SettingKind.LOSS, suspicion=1).text
        'beta2: 0.999 against 0.9'
        """
        where = f" ({join_names(self.places, at_most=_MAX_PLACES)})" if self.places else ""
        return f"{self.what}{where}: {_format_value(self.reference)} against {_format_value(self.candidate)}"


def differing_values(
    reference: Mapping[str, JsonValue], candidate: Mapping[str, JsonValue], *, leave_out: Sequence[str] = ()
) -> list[tuple[str, JsonValue, JsonValue]]:
    """Return name and both values of everything that differs, in the order of the names; None if one side lacks it."""
    names = [name for name in dict.fromkeys([*reference, *candidate]) if name not in leave_out]
    pairs = [(name, reference.get(name), candidate.get(name)) for name in names]
    return [(name, first, second) for name, first, second in pairs if not _equal(first, second)]


def group_by_place(differences: Iterable[SettingDifference]) -> list[SettingDifference]:
    """Merge the differences that have the same values in several places."""
    found: dict[str, list[SettingDifference]] = {}
    for difference in differences:
        key = repr((difference.what, difference.reference, difference.candidate, difference.kind))
        found.setdefault(key, []).append(difference)
    return [
        replace(
            group[0],
            suspicion=max(difference.suspicion for difference in group),
            places=tuple(place for difference in group for place in difference.places),
        )
        for group in found.values()
    ]


def _equal(reference: JsonValue, candidate: JsonValue) -> bool:
    """Return whether two values are the same; a list equals a tuple, 0 is not False, and NaN equals NaN."""
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
