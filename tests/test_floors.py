"""Holds the floors: a room uses rooms on lower floors only, and rooms on one floor do not know each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "roundoff"

FLOORS = [
    {"kernels", "errors", "lazy_names", "words", "progress"},
    {"formats", "runs", "checkpoints"},
    {"precision", "record"},
    {"compare", "sensitivity", "switches"},
    {"diagnose"},
    {"report", "replay"},
    {"watch", "train", "serve"},
    {"experiments"},
    {"cli"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FRONT_DOOR = {"__init__", "__main__"}


def room_of(path: Path) -> str:
    """Return the first folder below the package, or the name of a file that is a room by itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_in(source: str, *, package: str) -> Iterator[str]:
    """Yield the full name of everything imported, wherever the import stands; `package` is where the file lives."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


def trespasses(source: str, *, room: str, package: str) -> list[str]:
    """Say which imports of a file in `room` break the rule of the floors."""
    found = []
    for name in imports_in(source, package=package):
        root, *rest = name.split(".")
        if root != "roundoff":
            continue
        if not rest:
            found.append(f"{room} imports roundoff itself, whose public names lead to every floor")
            continue
        other = rest[0]
        if other in (room, "errors"):  # every room may raise
            continue
        if other not in FLOOR_OF:
            found.append(f"{room} imports {name}, which is not a room")
        elif FLOOR_OF[other] >= FLOOR_OF[room]:
            found.append(f"{room} (floor {FLOOR_OF[room]}) imports {name} (floor {FLOOR_OF[other]})")
    return found


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) not in FRONT_DOOR]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_uses_lower_floors_only(path: Path):
    package = ".".join(["roundoff", *path.relative_to(PACKAGE).parent.parts])
    assert trespasses(path.read_text(), room=room_of(path), package=package) == []


def test_every_room_has_a_floor():
    assert {room_of(path) for path in FILES} <= set(FLOOR_OF)


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("runs", "from roundoff.record import recording"),
        ("runs", "import roundoff.formats"),
        ("runs", "def late():\n    from roundoff.diagnose.rules import RULES"),
        ("runs", "if TYPE_CHECKING:\n    from roundoff import record"),
        ("runs", "from ..record import steps"),
        ("runs", "importlib.import_module('roundoff.cli')"),
        ("runs", "import roundoff"),
        ("kernels", "from roundoff.formats import round_to"),
        ("errors", "from roundoff.kernels import summarize"),
        ("compare", "from roundoff.helpers import anything"),
    ],
)
def test_a_planted_trespass_is_found(room: str, line: str):
    assert len(trespasses(line, room=room, package=f"roundoff.{room}")) == 1


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("runs", "from roundoff.runs.records.event import Event"),
        ("runs", "from .event import Event"),
        ("kernels", "from roundoff.errors import KernelError"),
        ("runs", "import torch, numpy as np"),
        ("cli", "def late():\n    from roundoff.report import to_text"),
    ],
)
def test_an_honest_import_is_left_alone(room: str, line: str):
    assert trespasses(line, room=room, package=f"roundoff.{room}") == []
