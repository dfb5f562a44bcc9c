"""Losses out of plain logs: lines that a training printed for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from roundoff.compare.curves.curve import LossCurve
from roundoff.errors import CompareError

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan\b|inf(?:inity)?\b)"
_WORD = r"[\"']?\s*[:=#]?\s*"
"""What may stand between a name and its number."""
_NOT_OTHERS = "".join(rf"(?<!\b{word}[ _/.-])" for word in ("val", "valid", "validation", "eval", "test", "dev"))
_LOSS = re.compile(rf"(?<![\w/.-]){_NOT_OTHERS}(?:train(?:ing)?[ _/.-]?)?loss{_WORD}({_NUMBER})", re.IGNORECASE)
_STEP = re.compile(
    rf"(?<![a-z0-9])(?:global[ _]?step|step|iteration|iter|it|batch){_WORD}\[?\s*(\d+)(?:\s*/\s*(\d+))?(?![\d.])",
    re.IGNORECASE,
)
_PLACE = re.compile(r"(?<![\d/.])(\d+)\s*/\s*(\d+)(?![\d/.])")
"""`120/600`: the place in an epoch, as progress bars show it."""
_EPOCH = re.compile(rf"(?<![a-z0-9])epoch{_WORD}\[?\s*(\d+)(?:\s*/\s*\d+)?(?![\d.])", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_LogLine = tuple[int | None, float]


def read_log(path: Path, *, pattern: str | None) -> LossCurve:
    """Return the losses of a log, by a pattern with the groups `step` (which may be missing) and `loss`, or by guess.

    A `CompareError` shows a line of the log where nothing is found.
    """
    expression = _compile_pattern(pattern) if pattern is not None else None
    lines = _lines(path)
    found = list(_by_pattern(lines, expression, path=path) if expression is not None else _by_guess(lines))
    if not found:
        raise CompareError.explain(
            f"No loss was found in '{path}'.",
            why=f"{'the pattern fits none of its lines' if pattern else 'no line is like: step 12 loss 2.31'}; "
            f"one of them is: {_example(path)}",
            fix=r"give a pattern: --pattern 'it (?P<step>\d+) .* train (?P<loss>\S+)'",
        )
    if any(step is not None for step, _ in found):  # a line without a step sums others up
        found = [(step, loss) for step, loss in found if step is not None]
    return LossCurve.of([step for step, _ in found], [loss for _, loss in found], name=path.name)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise CompareError.explain(f"The pattern '{pattern}' is no regular expression.", why=f"{error}.") from error
    if "loss" not in expression.groupindex:
        raise CompareError.explain(
            f"The pattern '{pattern}' does not say where the loss is.",
            why="it has no group named loss.",
            fix=r"name the groups: 'it (?P<step>\d+) .* train (?P<loss>\S+)'",
        )
    return expression


def _by_pattern(lines: Iterable[str], expression: re.Pattern[str], *, path: Path) -> Iterator[_LogLine]:
    for line in lines:
        match = expression.search(line)
        if match is None:
            continue
        groups = match.groupdict()
        try:
            step = int(groups["step"]) if groups.get("step") is not None else None
            yield step, float(groups["loss"])
        except (TypeError, ValueError) as error:
            raise CompareError.explain(
                f"The pattern finds no numbers in a line of '{path}'.",
                why=f"step is {groups.get('step')!r} and loss is {groups['loss']!r} in: {line.strip()[:120]}",
                fix=r"let the groups hold numbers only: (?P<loss>[-+.\deE]+)",
            ) from error


def _by_guess(lines: Iterable[str]) -> Iterator[_LogLine]:
    """Yield the losses that lines name, each with the step that its line names.

    Lines like `Epoch 3 [120/600] Loss: 0.43` name the epoch and a place in it: step 3 * 600 + 120.
    """
    for line in lines:
        losses = _LOSS.findall(line)
        if losses:
            yield _step_of(line), float(losses[0])


def _step_of(line: str) -> int | None:
    step, epoch = _STEP.search(line), _EPOCH.search(line)
    rest = line if epoch is None else line[: epoch.start()] + line[epoch.end() :]
    place = step if step is not None and step.group(2) else _PLACE.search(rest)
    if epoch is not None and place is not None:
        return int(epoch.group(1)) * int(place.group(2)) + int(place.group(1))
    if step is not None:
        return int(step.group(1))
    if place is not None:
        return int(place.group(1))
    return int(epoch.group(1)) if epoch is not None else None


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log as they looked on the screen: progress bars write many of them over each other."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for line in file:
            yield from (_COLOUR.sub("", part) for part in re.split(r"[\r\n]", line) if part.strip())


def _example(path: Path) -> str:
    """Return a line to show, if possible one that speaks of a loss."""
    first = ""
    for line in _lines(path):
        if "loss" in line.lower():
            return line.strip()[:120]
        first = first or line.strip()[:120]
    return first
