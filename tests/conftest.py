"""Keeps pytest from importing scripts that train: looking for doctests in them would run them."""

from pathlib import Path

_TESTS = Path(__file__).parent
collect_ignore = [
    str(_TESTS / "watch" / "supervised.py"),
    *(str(path) for path in (_TESTS / "watch" / "kinds").glob("*.py")),
    *(str(path) for path in (_TESTS / "flows" / "plans").glob("*.py")),
    *(str(path) for path in (_TESTS / "faults").rglob("*.py") if not path.name.startswith("test_")),
]
