"""One part of a training's state at a seam, and whether the resumed run has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from roundoff.runs import JsonValue


class ResumePart(StrEnum):
    """What a resumed run needs in order to go on as if nothing had happened, the gravest first."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    OPTIMIZER = "optimizer state"
    STEP = "step counter"
    SCHEDULE = "learning rate"
    LOSS_SCALE = "loss scale"
    DATA = "data order"
    GENERATORS = "generators"
    COPIES = "copies of the model"
    LOSSES = "losses"


class Restoration(StrEnum):
    """Whether a part was restored."""

    RESTORED = "restored"
    LOST = "not restored"
    UNUSED = "not used"
    """It is not what it was, and that has no effect."""
    DRIFTS = "drift"
    """Losses that differ, since something else was not restored."""
    UNKNOWN = "not compared"
    NONE = "none"
    """The training has no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPart:
    """One part, and what was found about it."""

    part: ResumePart
    answer: Restoration
    text: str
    """What was found, without a full stop."""
    fix: str = ""
    """What to change, where it was not restored."""
    numbers: dict[str, JsonValue] = field(default_factory=dict)
    """What the text rests on."""


def as_before(part: ResumePart, text: str) -> ComparedPart:
    """Say that a part is what it was."""
    return ComparedPart(part=part, answer=Restoration.RESTORED, text=text)


def unknown(part: ResumePart, text: str) -> ComparedPart:
    """Say why a part could not be compared."""
    return ComparedPart(part=part, answer=Restoration.UNKNOWN, text=text)


def absent(part: ResumePart, text: str) -> ComparedPart:
    """Say that the training has no such thing."""
    return ComparedPart(part=part, answer=Restoration.NONE, text=text)


def lost(part: ResumePart, text: str, *, fix: str, **numbers: JsonValue) -> ComparedPart:
    """Say that a part was not restored."""
    return ComparedPart(part=part, answer=Restoration.LOST, text=text, fix=fix, numbers=numbers)
