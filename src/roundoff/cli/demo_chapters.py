"""The story of the demo: what is done one after the other, and the command that does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SCRIPT = "digits.py"
PLANNED = "planned.toml"
PAGE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One command of the story."""

    title: str
    words: tuple[str, ...]
    """Behind `roundoff`."""
    ends_with: int
    """The exit code that it must have for the story to go on."""
    seconds: float
    """What it took where the demo was written, so that the time left can be told."""
    num_paragraphs: int | None = None
    """How much of its output is shown; None is all of it."""


STORY = (
    Chapter(
        title=f"Train {SCRIPT} in fp32, watched. This is the reference.",
        words=("run", "--name", "fp32", SCRIPT, "fp32"),
        ends_with=0,
        seconds=5.0,
    ),
    Chapter(
        title="The same in half precision: it breaks, the bad step is replayed op by op, and the op is named.",
        words=("run", "--name", "half", SCRIPT, "half"),
        ends_with=1,
        seconds=6.5,
    ),
    Chapter(
        title="The step was saved. Run it again, in a process that knows nothing but the folder and the model.",
        words=("replay", "runs/half", "--builder", f"{SCRIPT}:build"),
        ends_with=1,
        seconds=4.0,
    ),
    Chapter(
        title="Which sites can be fp16? Look into one step, propose a recipe, and try it beside fp32.",
        words=("plan", "--jobs", "0", "--steps", "60", "-o", PLANNED, SCRIPT),
        ends_with=0,
        seconds=6.5,
        num_paragraphs=3,
    ),
    Chapter(
        title="Train with the planned recipe.",
        words=("run", "--name", "planned", SCRIPT, PLANNED),
        ends_with=0,
        seconds=5.0,
    ),
    Chapter(
        title="Does it compute what fp32 computes?",
        words=("compare", "runs/fp32", "runs/planned"),
        ends_with=0,
        seconds=3.0,
    ),
    Chapter(
        title="A page about the run that broke, against the reference, to look at and to send to others.",
        words=("report", "runs/half", "--against", "runs/fp32", "-o", PAGE),
        ends_with=0,
        seconds=3.5,
    ),
)


def seconds_left(story: Sequence[Chapter], *, num_done: int, elapsed: float) -> float:
    """Estimate how long the rest takes, from how long the first chapters took here.

    >>> round(seconds_left(STORY, num_done=0, elapsed=0.0))
    34
    >>> round(seconds_left(STORY, num_done=len(STORY), elapsed=50.0))
    0
    """
    done = sum(chapter.seconds for chapter in story[:num_done])
    left = sum(chapter.seconds for chapter in story[num_done:])
    return left * (elapsed / done if done else 1.0)


def first_paragraphs(lines: Iterable[str], num_paragraphs: int | None) -> Iterator[str]:
    """Yield the first paragraphs of an output as they come, and dots for the rest of it; None is all of it.

    >>> list(first_paragraphs(["verdict", "", "facts", "more", "", "table"], 2))
    ['verdict', '', 'facts', 'more', '...']
    """
    num_ended = 0
    for line in lines:
        is_shown = num_paragraphs is None or num_ended < num_paragraphs
        num_ended += not line
        if is_shown:
            yield "..." if num_ended == num_paragraphs else line
