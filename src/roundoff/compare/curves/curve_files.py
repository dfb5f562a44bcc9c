"""Reads loss curves from files: CSV, JSON lines, TensorBoard events and plain logs."""

from __future__ import annotations

import csv
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roundoff.compare.curves.curve import LossCurve
from roundoff.errors import CompareError, first_line

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan\b|inf(?:inity)?\b)"
_WORD = r"[\"']?\s*[:=#]?\s*"
"""What may separate a name and its number."""
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


_TableRow = Mapping[str, Any]


def read_curve(path: Path | str, *, pattern: str | None = None, column: str | None = None) -> LossCurve:
    """Return the loss curve that a file holds.

    Args:
        path: a CSV or TSV file, JSON lines (such as a run's metrics-rank0.jsonl), TensorBoard's event file or a folder
            of such, or any log.
        pattern: reads the file as a log; a regular expression with the groups `step` and `loss`.
        column: the name of the loss in a table, JSON lines or TensorBoard; by default the one that looks like it.
    """
    path = Path(path)
    try:
        _check_is_file(path)
        if pattern is not None:
            return read_log(path, pattern=pattern)
        if path.is_dir() or "tfevents" in path.name:
            return read_events(path, column=column)
        if path.suffix in (".csv", ".tsv"):
            return _from_rows(path, list(_rows_of_table(path)), column=column)
        if path.suffix == ".jsonl":
            return _from_rows(path, list(_rows_of_json(path)), column=column)
        return read_log(path, pattern=None)
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error


def _check_is_file(path: Path) -> None:
    if not path.exists():
        raise CompareError.explain(f"There is no '{path}'.", fix="name a CSV file, JSON lines, a log or event files.")
    if path.is_file() and not path.stat().st_size:
        raise CompareError.explain(f"'{path}' is empty.", fix="name a file that a training has written to.")


def _from_rows(path: Path, rows: list[_TableRow], *, column: str | None) -> LossCurve:
    """Build the curve; rows without a loss are left out, since many loggers write one row per metric."""
    if not rows:
        raise CompareError.explain(f"'{path}' holds no rows.", fix="name a file that a training has written to.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    loss, step = loss_column(names, chosen=column, path=path), step_column(names)
    kept = [row for row in rows if row.get(loss) not in (None, "")]
    values = [_number(row[loss], name=loss, path=path) for row in kept]
    if not values:
        raise CompareError.explain(f"The column '{loss}' of '{path}' is empty.", fix="name another: --column NAME")
    steps = [_step(row.get(step)) if step is not None else None for row in kept]
    return LossCurve.of(steps, values, name=path.name)


def _number(value: object, *, name: str, path: Path) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except (ValueError, OverflowError):
        raise CompareError.explain(
            f"The column '{name}' of '{path}' holds no numbers.",
            why=f"one of its values is {str(value)[:80]!r}.",
            fix="name another: --column NAME",
        ) from None


def _step(value: object) -> int | None:
    """Return a step, or None if it is not a whole number, such as a third of an epoch."""
    try:
        number = float(value) if isinstance(value, int | float | str) else float("nan")
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _rows_of_table(path: Path) -> Iterator[_TableRow]:
    """Yield rows by column name; a table without a header has the columns step and loss, or only loss."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline()
        file.seek(0)
        separator = max("\t;,", key=first.count)
        rows = csv.reader(file, delimiter=separator)
        names = next((row for row in rows if any(cell.strip() for cell in row)), [])
        names = [name.strip() for name in names]
        if names and all(_is_number(name) for name in names):
            names, cells = (["loss"] if len(names) == 1 else ["step", "loss"]), names
            yield dict(zip(names, cells, strict=False))
        for row in rows:
            yield {name: cell.strip() for name, cell in zip(names, row, strict=False)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows_of_json(path: Path) -> Iterator[_TableRow]:
    """Yield the objects of the lines, inner ones by joined names: `{"train": {"loss": 1}}` has a column train/loss.

    An incomplete last line is dropped: the training may still be writing it.
    """
    broken: int | None = None
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if broken is not None:
                raise _not_json(path, broken)
            try:
                value = json.loads(line) if line.strip() else {}
            except ValueError:
                broken = number
                continue
            if not isinstance(value, dict):
                raise _not_json(path, number)
            if value:
                yield dict(_flatten(value))
    if broken == 1:
        raise _not_json(path, broken)


def _flatten(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{before}{name}/")
        elif not isinstance(inner, list):
            yield f"{before}{name}", inner


def _not_json(path: Path, line: int) -> CompareError:
    return CompareError.explain(
        f"Line {line} of '{path}' is not a JSON object.",
        fix="if it is a log, say how to read it: --pattern 'step (?P<step>\\d+) loss (?P<loss>\\S+)'",
    )


def read_log(path: Path, *, pattern: str | None) -> LossCurve:
    """Return the losses of a log, by a pattern with the groups `loss` and (optionally) `step`, or by guess.

    A `CompareError` shows a line of the log if nothing is found.
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
    if any(step is not None for step, _ in found):  # a line without a step is a summary
        found = [(step, loss) for step, loss in found if step is not None]
    return LossCurve.of([step for step, _ in found], [loss for _, loss in found], name=path.name)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise CompareError.explain(f"The pattern '{pattern}' is not a regular expression.", why=f"{error}.") from error
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
    """Yield the loss and step of each line that has a loss.

    Lines like `Epoch 3 [120/600] Loss: 0.43` name the epoch and a place in it: step 3 * 600 + 120.
    """
    for line in lines:
        loss = _LOSS.search(line)
        if loss:
            yield _step_of(line), float(loss[1])


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
    """Yield the lines of a log without colours; progress bars separate theirs by carriage returns."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for line in file:
            yield from (_COLOUR.sub("", part) for part in re.split(r"[\r\n]", line) if part.strip())


def _example(path: Path) -> str:
    """Return a line to show, preferably one that mentions a loss."""
    with_loss = (line for line in _lines(path) if "loss" in line.lower())
    return next(with_loss, next(_lines(path), "")).strip()[:120]


_LOSSES = (
    "loss",
    "train_loss",
    "training_loss",
    "loss_train",
    "train_loss_step",
    "loss_step",
    "train_train_loss",
    "total_loss",
    "train_total_loss",
)
_STEPS = ("step", "global_step", "train_global_step", "_step", "iteration", "iter", "train_step", "batch", "epoch")
_OTHERS = re.compile(r"(^|_)(val|valid|validation|eval|evaluation|test|dev|scale)(_|$)|_min$|_max$")
"""Losses of an evaluation, the scale of a loss, and the extremes next to a mean."""


def loss_column(names: Sequence[str], *, chosen: str | None, path: Path) -> str:
    """Return the column of the loss; a `CompareError` lists the columns if none, or more than one, can be it."""
    if chosen is not None:
        if chosen not in names:
            raise _no_column(f"'{path}' has no column '{chosen}'.", names)
        return chosen
    plain = {_plain(name): name for name in reversed(names)}
    for known in _LOSSES:
        if known in plain:
            return plain[known]
    candidates = [name for name in names if "loss" in _plain(name) and not _OTHERS.search(_plain(name))]
    if not candidates and "value" in plain:
        return plain["value"]
    if len(candidates) != 1:
        found = f"several columns could be the loss: {', '.join(candidates)}" if candidates else ""
        raise _no_column(f"'{path}' does not say which column is the loss.", names, found=found)
    return candidates[0]


def step_column(names: Sequence[str]) -> str | None:
    """Return the column of the step, or None.

    >>> step_column(["Wall time", "Step", "Value"])
    'Step'
    """
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[known] for known in _STEPS if known in plain), None)


def _plain(name: str) -> str:
    """Return a name in one spelling: `train/Loss` is train_loss."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower())


def _no_column(what: str, names: Sequence[str], *, found: str = "") -> CompareError:
    listed = ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")
    return CompareError.explain(
        what,
        why=f"{found or (f'its columns are {listed}' if listed else 'it has no column of numbers')}.",
        fix="name the column: --column NAME",
    )


def read_events(path: Path, *, column: str | None) -> LossCurve:
    """Return the loss from an event file, or from all event files of a folder; `column` is its tag.

    If a step was written twice, as a resumed training does, the later value counts.
    """
    events = _load_events(path)
    scalars, tensors = events.Tags()["scalars"], events.Tags()["tensors"]
    tags = [*scalars, *(tag for tag in tensors if _is_scalar(events, tag))]
    if not tags:
        raise CompareError.explain(
            f"'{path}' holds no scalars of TensorBoard.", fix="name the folder in which the events of one run are."
        )
    tag = loss_column(tags, chosen=column, path=path)
    if tag in scalars:
        points = [(event.step, float(event.value)) for event in events.Scalars(tag)]
    else:
        points = [(event.step, float(_array(event.tensor_proto))) for event in events.Tensors(tag)]
    return LossCurve.of([step for step, _ in points], [value for _, value in points], name=path.name)


def _load_events(path: Path) -> Any:
    try:
        module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        raise CompareError.explain(
            f"'{path}' holds TensorBoard's events, which need a package.",
            why=f"{first_line(error)}.",
            fix="pip install 'roundoff[tensorboard]'",
        ) from error
    # 0 keeps every event; by default TensorBoard keeps a sample of them.
    events = module.EventAccumulator(str(path), size_guidance={module.SCALARS: 0, module.TENSORS: 0})
    try:
        events.Reload()
    except Exception as error:  # TensorBoard's parser raises anything on a broken file
        raise CompareError.explain(f"The events in '{path}' cannot be read.", why=f"{first_line(error)}.") from error
    return events


def _is_scalar(events: Any, tag: str) -> bool:
    """Return whether a tag holds single numbers, which newer writers store as tensors."""
    first = events.Tensors(tag)[:1]
    return bool(first) and not first[0].tensor_proto.tensor_shape.dim and bool(_array(first[0].tensor_proto).ndim == 0)


def _array(proto: Any) -> Any:
    return importlib.import_module("tensorboard.util.tensor_util").make_ndarray(proto)
