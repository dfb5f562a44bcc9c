"""The lines of code that findings are about, quoted while the script is at hand."""

from __future__ import annotations

import contextlib
import os
import site
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePosixPath

from roundoff.errors import RoundoffError
from roundoff.files import read_bytes
from roundoff.notebook_cells import cell_lines
from roundoff.runs import Finding, JsonValue, Run

_LINES_AROUND = 2
_MAX_FILE_BYTES = 2 * 2**20
_MAX_COLUMNS = 200


def quote_code(run: Run, findings: Sequence[Finding], *, is_at_hand: bool) -> list[Finding]:
    """Return the findings, each that names a source line with that line and those around it in its evidence.

    Lines that an earlier diagnosis quoted are kept.

    Args:
        run: the run.
        findings: what was found in it.
        is_at_hand: the script has run here just now. Only then files are read: the names in someone else's run could
            lead to any file.
    """
    quoted: dict[str, JsonValue] = {}
    with contextlib.suppress(RoundoffError, OSError):
        quoted = {
            finding.source: code for finding in run.findings() or () if finding.source and (code := _code(finding))
        }
    result: list[Finding] = []
    for finding in findings:
        code = quoted.get(finding.source or "")
        if code is None and is_at_hand and finding.source is not None:
            code = _quote(run, finding.source)
        result.append(finding if code is None else replace(finding, evidence=(*finding.evidence, code)))
    return result


def _code(finding: Finding) -> JsonValue:
    return next((item for item in finding.evidence if isinstance(item, dict) and "code" in item), None)


def _quote(run: Run, source: str) -> JsonValue:
    """Return the lines around a source line; None if its file is not there, or has changed since the run began."""
    name, _, number = source.rpartition(":")
    lines = read_user_code(run, name) if number.isdecimal() else None
    if lines is None:
        return None
    return _around(lines, int(number))


def read_user_code(run: Run, name: str) -> list[str] | None:
    """Return the lines of a file or notebook cell of the script; None if it is not there, or changed since the run."""
    if (cell := cell_lines(name)) is not None:
        return cell
    for path in _candidates(run, name):
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_mtime > datetime.fromisoformat(run.info.started).timestamp():
                return None
            return read_bytes(path, max_bytes=_MAX_FILE_BYTES).decode(errors="replace").splitlines()
    return None


def _around(lines: Sequence[str], number: int) -> JsonValue:
    """Return a line and those around it, without empty lines at the ends; None if it is not there, or empty."""
    around = range(max(number - _LINES_AROUND, 1), min(number + _LINES_AROUND, len(lines)) + 1)
    full = [each for each in around if lines[each - 1].strip()]
    if number not in full:
        return None
    return {"code": [line.rstrip()[:_MAX_COLUMNS] for line in lines[full[0] - 1 : full[-1]]], "from_line": full[0]}


def find_source(run: Run, source: str) -> Path | None:
    """Return the file of a source line, `model.py:41`, if it is here."""
    return next((path.absolute() for path in _candidates(run, source.rpartition(":")[0])), None)


def _candidates(run: Run, name: str) -> Iterator[Path]:
    """Yield where a file may be whose path was shortened (`record/source_lines.py`)."""
    path = PurePosixPath(name)
    if path.suffix != ".py" or path.is_absolute() or ".." in path.parts:
        return
    script = next((Path(word) for word in run.info.command if word.endswith(".py")), Path())
    folders = [Path.cwd(), *list(script.absolute().parents)[:2], *map(Path, site.getsitepackages())]
    for folder in dict.fromkeys(folders):
        if os.path.isfile(folder / path):
            yield folder / path
