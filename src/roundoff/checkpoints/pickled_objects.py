"""What stands in for the classes and functions a pickle names: nothing of it is ever imported or called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Global:
    """A name that a pickle asks for and that means nothing to us."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:100]


@dataclass(frozen=True, slots=True)
class Known:
    """A name with a meaning; `make` gets the arguments a pickle calls it with, and complains with `ValueError`."""

    make: Callable[[tuple[Any, ...]], Any]


@dataclass(slots=True, eq=False)
class PickledObject:
    """An instance of a class we do not know: where it came from, and the plain data it was given."""

    made_by: Global
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] | None = None
    """What it holds as a dict; None, which takes no memory, while that is nothing."""

    def set_state(self, state: Any) -> None:
        """Keep what the pickle would have put into the object; of (attributes, slots) both."""
        match state:
            case (dict() | None as attributes, dict() as slots):
                self.state = {**(attributes or {}), **slots}
            case _:
                self.state = state

    def attribute(self, name: str) -> Any:
        """Return an attribute the pickle gave it, or None."""
        return self.state.get(name) if isinstance(self.state, dict) else None


DANGEROUS_MODULES = frozenset(
    {
        "os",
        "posix",
        "nt",
        "sys",
        "subprocess",
        "shutil",
        "pty",
        "socket",
        "builtins",
        "__builtin__",
        "importlib",
        "runpy",
        "code",
        "ctypes",
        "pickle",
        "marshal",
        "types",
        "functools",
        "operator",
        "webbrowser",
        "timeit",
        "multiprocessing",
        "asyncio",
        "commands",
        "pip",
        "setuptools",
        "pydoc",
        "pdb",
        "profile",
        "imp",
        "http",
        "urllib",
    }
)
"""A pickle that names one of these is refused. Others are not called either: safety does not rest on this list."""

HARMLESS = frozenset({("functools", "partial"), ("types", "SimpleNamespace")})
HARMLESS_BUILTINS = frozenset({"object", "set", "frozenset", "slice", "range", "type", "float", "int", "str", "bool"})


def is_dangerous(asked: Global) -> bool:
    """Say whether only a hostile pickle would name it."""
    module = asked.module.partition(".")[0]
    if module in ("builtins", "__builtin__"):
        return asked.name not in HARMLESS_BUILTINS
    return module in DANGEROUS_MODULES and (asked.module, asked.name) not in HARMLESS


def ordered_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Make an OrderedDict of nothing, or of the pairs that Python 2 wrote."""
    if not arguments:
        return {}
    match arguments[0]:
        case [*pairs] if all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            if all(isinstance(pair[0], str) for pair in pairs):
                return {pair[0]: pair[1] for pair in pairs}
    raise ValueError("the pickle makes a dict of something that is no list of pairs")


def first_argument(arguments: tuple[Any, ...]) -> Any:
    """Let a container be what it is made of: copies could be asked for without end."""
    return arguments[0] if arguments else []


def complex_number(arguments: tuple[Any, ...]) -> complex:
    """Make a complex number of its two parts."""
    match arguments:
        case (float() | int() as real, float() | int() as imaginary):
            return complex(real, imaginary)
    raise ValueError("the pickle makes a complex number of something that is none")


PLAIN_GLOBALS: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): Known(ordered_dict),
    ("collections", "defaultdict"): Known(lambda arguments: {}),
    ("collections", "Counter"): Known(
        lambda arguments: arguments[0] if arguments and type(arguments[0]) is dict else {}
    ),
    **{
        (module, name): Known(first_argument)
        for module in ("builtins", "__builtin__")
        for name in ("tuple", "list", "set", "frozenset")
    },
    **{
        (module, name): Known(lambda arguments: arguments[0] if arguments else memoryview(b""))
        for module in ("builtins", "__builtin__")
        for name in ("bytes", "bytearray")
    },
    **{(module, "complex"): Known(complex_number) for module in ("builtins", "__builtin__")},
    **{(module, "dict"): Known(lambda arguments: {}) for module in ("builtins", "__builtin__")},
}
"""What pickles of plain data name, in Python 3 and 2."""
