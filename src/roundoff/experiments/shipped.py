"""The sweeps that come with roundoff, found by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from roundoff.errors import SweepError

FOLDER = Path(__file__).parent / "sweeps"


def shipped_sweeps() -> tuple[Path, ...]:
    """Return the files of the sweeps that come along, by name."""
    return tuple(sorted(FOLDER.glob("*.toml")))


def find_sweep(name: str) -> Path:
    """Return the file that is meant: a path, or the name of a sweep that comes along."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    names = {shipped.stem: shipped for shipped in shipped_sweeps()}
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise SweepError.explain(
            f"No sweep '{name}'.",
            why=f"there is no such file, and by name there are {', '.join(names)}.",
            fix=f"did you mean '{close[0]}'?" if close else None,
        )
    return names[name]
