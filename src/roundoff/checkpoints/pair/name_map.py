"""A file that maps names of the reference to names of the candidate, for names that cannot be matched automatically."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from roundoff.errors import CheckpointError


def read_name_map(path: Path) -> dict[str, str]:
    """Read lines 'name in the reference = name in the candidate'; `#` starts a comment.

    `encoder.* = backbone.*` maps every name with this prefix.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError.explain(f"The map '{path}' cannot be read.", why=str(error)) from error
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        reference, equals, candidate = (part.strip() for part in text.partition("="))
        if not (reference and equals and candidate) or reference in names:
            raise CheckpointError.explain(
                f"Line {number} of the map '{path}' is invalid: '{line.strip()}'.",
                why="its name is in an earlier line." if reference in names else None,
                fix="write 'name in the reference = name in the candidate', each name once.",
            )
        names[reference] = candidate
    return names


def expand_name_map(names: Mapping[str, str], reference: Iterable[str], candidate: Iterable[str]) -> dict[str, str]:
    """Expand `a.* = b.*` to all matching names; raises a `CheckpointError` for unknown or repeated names."""
    references, candidates = list(reference), set(candidate)
    expanded: dict[str, str] = {}
    for left, right in names.items():
        if left.endswith("*") and right.endswith("*"):
            begun = [name for name in references if name.startswith(left[:-1])]
            found = {name: right[:-1] + name[len(left) - 1 :] for name in begun}
            found = {name: other for name, other in found.items() if other in candidates}
            if not found:
                raise _no_such(left, references, "reference") if not begun else _no_such(right, candidates, "candidate")
            expanded.update({name: other for name, other in found.items() if name not in names})
            continue
        if left not in references:
            raise _no_such(left, references, "reference")
        if right not in candidates:
            raise _no_such(right, candidates, "candidate")
        expanded[left] = right
    twice = [name for name in expanded.values() if list(expanded.values()).count(name) > 1]
    if twice:
        raise CheckpointError.explain(
            f"The map names '{twice[0]}' twice.", fix="map each tensor of the candidate once."
        )
    return expanded


def _no_such(name: str, names: Iterable[str], side: str) -> CheckpointError:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)
    return CheckpointError.explain(
        f"The map names '{name}', which the {side} does not have.",
        why=f"the nearest is '{near[0]}'." if near else None,
        fix="use names that `roundoff params` prints: the reference left of '=', the candidate right.",
    )
