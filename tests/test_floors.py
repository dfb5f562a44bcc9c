"""Holds the floors: a room uses rooms on lower floors only, and rooms on one floor do not know each other.

The same holds one level down: the parts of a room, its sub-folders and its own files, depend on each other in one
direction only. A room's `__init__` is its door and is left out: it leads to all parts. So are imports for types alone.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "roundoff"

FLOORS = [
    {
        "kernels",
        "console",
        "errors",
        "files",
        "lazy_names",
        "notebook_cells",
        "words",
        "progress",
        "tensor_header",
        "torch_private",
    },
    {"formats", "runs", "checkpoints"},
    {"precision", "record"},
    {"compare", "sensitivity", "switches"},
    {"diagnose"},
    {"report", "replay"},
    {"watch", "train", "serve"},
    {"experiments", "testing"},
    {"cli"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FRONT_DOOR = {"__init__", "__main__"}


def room_of(path: Path) -> str:
    """Return the first folder below the package, or the name of a file that is a room by itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_in(source: str, *, package: str) -> Iterator[str]:
    """Yield the full name of everything imported, wherever the import is; `package` is where the file lives."""
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
        if other in (room, "errors", "lazy_names"):  # every room may raise, and load its names on first use
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
        ("runs", "def late():\n    from roundoff.diagnose.diagnosis import RULES"),
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


def part_of(module: str, *, room: str) -> str | None:
    """Return the sub-folder or file of `room` that a dotted name leads into; None for other rooms and for the door."""
    parts = module.split(".")
    if parts[:2] != ["roundoff", room] or len(parts) < 3:
        return None
    is_part = (PACKAGE / room / parts[2]).is_dir() or (PACKAGE / room / f"{parts[2]}.py").exists()
    return parts[2] if is_part else None


def parts_of(room: str) -> dict[str, set[str]]:
    """Return each part of a room with the other parts of it that it imports."""
    uses: dict[str, set[str]] = {}
    for path in (PACKAGE / room).rglob("*.py"):
        name = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        package = ".".join(["roundoff", *path.relative_to(PACKAGE).parent.parts])
        source = without_type_imports(path.read_text())
        imported = {part_of(found, room=room) for found in imports_in(source, package=package)}
        uses.setdefault(name, set()).update(part for part in imported if part not in (None, name))
    return uses


def without_type_imports(source: str) -> str:
    """Return the source without its `if TYPE_CHECKING` blocks."""
    tree = ast.parse(source)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    return ast.unparse(tree)


def circle_in(uses: Mapping[str, set[str]]) -> list[str]:
    """Return parts that depend on each other in a circle, or nothing."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("room", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))
def test_the_parts_of_a_room_depend_on_each_other_in_one_direction(room: str):
    assert circle_in(parts_of(room)) == []


def test_a_planted_circle_is_found():
    assert set(circle_in({"trials": {"engine", "bisect"}, "bisect": {"trials"}, "engine": set()})) == {
        "trials",
        "bisect",
    }
