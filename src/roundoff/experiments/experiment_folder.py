"""The folders `bisect-1`, `bisect-2`, ... of searches and plans: which of them is meant."""

from __future__ import annotations

from pathlib import Path

from roundoff.errors import UsageError


def newest_first(base: Path, kind: str) -> list[Path]:
    """Return the folders of a kind, that with the highest number first."""
    return sorted(base.glob(f"{kind}-*"), key=_number, reverse=True)


def check_name(name: str | None) -> None:
    """Raise a `UsageError` if a name leads out of the folder of runs."""
    if name is not None and (Path(name).name != name or name in ("", "..")):
        raise UsageError.explain(
            f"--name '{name}' is not a name.",
            why="it names one folder inside that of --runs.",
            fix="leave out what is not its name, or choose another place by --runs.",
        )


def _number(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
