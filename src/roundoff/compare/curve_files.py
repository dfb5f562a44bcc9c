"""Loss curves out of files: CSV, JSON lines, TensorBoard events, logs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roundoff.compare.curve import Curve
from roundoff.compare.curve_columns import loss_column, step_column
from roundoff.compare.curve_logs import read_log
from roundoff.errors import CompareError

Row = Mapping[str, Any]


def read_curve(path: Path | str, *, pattern: str | None = None, column: str | None = None) -> Curve:
    """Return the loss curve that a file holds.

    Args:
        path: a CSV or TSV file, JSON lines (such as a run's metrics-rank0.jsonl), TensorBoard's event file or a folder
            of such, or any log.
        pattern: reads the file as a log; a regular expression with the groups `step` and `loss`.
        column: the name of the loss in a table, JSON lines or TensorBoard; by default the one that looks like it.
    """
    path = Path(path)
    try:
        _check(path)
        if pattern is not None:
            return read_log(path, pattern=pattern)
        if path.is_dir() or "tfevents" in path.name:
            from roundoff.compare.curve_events import read_events  # only those who have TensorBoard's files need it

            return read_events(path, column=column)
        if path.suffix in (".csv", ".tsv"):
            return _from_rows(path, list(_rows_of_table(path)), column=column)
        if path.suffix == ".jsonl":
            return _from_rows(path, list(_rows_of_json(path)), column=column)
        return read_log(path, pattern=None)
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error


def _check(path: Path) -> None:
    if not path.exists():
        raise CompareError.explain(f"There is no '{path}'.", fix="name a CSV file, JSON lines, a log or event files.")
    if path.is_file() and not path.stat().st_size:
        raise CompareError.explain(f"'{path}' is empty.", fix="name a file that a training has written to.")


def _from_rows(path: Path, rows: list[Row], *, column: str | None) -> Curve:
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
    return Curve.of(steps, values, name=path.name)


def _number(value: object, *, name: str, path: Path) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except ValueError:
        raise CompareError.explain(
            f"The column '{name}' of '{path}' holds no numbers.",
            why=f"one of its values is {str(value)[:80]!r}.",
            fix="name another: --column NAME",
        ) from None


def _step(value: object) -> int | None:
    """Return a step, or None for what is no whole number, such as a third of an epoch."""
    try:
        number = float(value) if isinstance(value, int | float | str) else float("nan")
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _rows_of_table(path: Path) -> Iterator[Row]:
    """Yield rows by column name; a table of bare numbers has the columns step and loss, or loss alone."""
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


def _rows_of_json(path: Path) -> Iterator[Row]:
    """Yield the objects of the lines, inner ones by joined names: `{"train": {"loss": 1}}` has a column train/loss.

    A last line that is cut off is dropped: the training may still be writing it.
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
                yield dict(_flat(value))
    if broken == 1:
        raise _not_json(path, broken)


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{before}{name}/")
        elif not isinstance(inner, list):
            yield f"{before}{name}", inner


def _not_json(path: Path, line: int) -> CompareError:
    return CompareError.explain(
        f"Line {line} of '{path}' is no JSON object.",
        fix="if it is a log, say how to read it: --pattern 'step (?P<step>\\d+) loss (?P<loss>\\S+)'",
    )
