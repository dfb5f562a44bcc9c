"""Inert stand-ins for what a pickle names, numpy arrays included; nothing is imported or called."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import NUM_BYTES, LazyTensor, read_flat
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Global:
    """A name in a pickle that has no meaning here."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:100]


@dataclass(frozen=True, slots=True)
class Known:
    """A name with a meaning; `make` takes the arguments of the call, and raises a `ValueError` if they are invalid."""

    make: Callable[[tuple[Any, ...]], Any]


@dataclass(slots=True, eq=False)
class PickledObject:
    """An instance of an unknown class: its origin, and the plain data it was given."""

    made_by: Global
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] | None = None
    """Its items as a dict; None while there are none, to save memory."""

    def set_state(self, state: Any) -> None:
        """Keep the state that the pickle sets; for (attributes, slots) both."""
        match state:
            case (dict() | None as attributes, dict() as slots):
                self.state = {**(attributes or {}), **slots}
            case _:
                self.state = state

    def attribute(self, name: str) -> Any:
        """Return an attribute that the pickle has set, or None."""
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
"""A pickle that names one of these is an error. Nothing else is called either: safety does not depend on this list."""

HARMLESS = frozenset({("functools", "partial"), ("types", "SimpleNamespace")})
HARMLESS_BUILTINS = frozenset({"object", "set", "frozenset", "slice", "range", "type", "float", "int", "str", "bool"})


def is_dangerous(named: Global) -> bool:
    """Return whether only a hostile pickle would name it."""
    module = named.module.partition(".")[0]
    if module in ("builtins", "__builtin__"):
        return named.name not in HARMLESS_BUILTINS
    return module in DANGEROUS_MODULES and (named.module, named.name) not in HARMLESS


def ordered_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Make an OrderedDict, empty or from the pairs that Python 2 wrote."""
    if not arguments:
        return {}
    match arguments[0]:
        case [*pairs] if all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            if all(isinstance(pair[0], str) for pair in pairs):
                return {pair[0]: pair[1] for pair in pairs}
    raise ValueError("the pickle makes a dict from something that is not a list of pairs")


def first_argument(arguments: tuple[Any, ...]) -> Any:
    """Return the argument of a container itself: a hostile pickle could request endless copies."""
    return arguments[0] if arguments else []


def complex_number(arguments: tuple[Any, ...]) -> complex:
    """Make a complex number from its two parts."""
    match arguments:
        case (float() | int() as real, float() | int() as imaginary):
            return complex(real, imaginary)
    raise ValueError("the pickle makes a complex number from something else")


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
        (module, name): Known(lambda arguments: arguments[0] if arguments else EncodedText(""))
        for module in ("builtins", "__builtin__")
        for name in ("bytes", "bytearray")
    },
    **{(module, "complex"): Known(complex_number) for module in ("builtins", "__builtin__")},
    **{(module, "dict"): Known(lambda arguments: {}) for module in ("builtins", "__builtin__")},
}
"""The names in pickles of plain data, in Python 3 and 2."""


TORCH_NAMES = {
    "f8": "float64",
    "f4": "float32",
    "f2": "float16",
    "c8": "complex64",
    "c16": "complex128",
    "i8": "int64",
    "i4": "int32",
    "i2": "int16",
    "i1": "int8",
    "u8": "uint64",
    "u4": "uint32",
    "u2": "uint16",
    "u1": "uint8",
    "b1": "bool",
    "V2": "bfloat16",
}
"""Torch's names of numpy's dtypes; numpy saves bfloat16 as two untyped bytes."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Bytes that an old protocol wrote as text; they are decoded on demand."""

    text: str

    def __len__(self) -> int:
        return len(self.text)


class PickledDtype:
    """`numpy.dtype` in a pickle; its byte order is part of its state."""

    def __init__(self, code: object) -> None:
        self.code = code if isinstance(code, str) else "?"
        self.is_big_endian = False

    def set_state(self, state: Any) -> None:
        """Read the byte order from the state."""
        self.is_big_endian = isinstance(state, tuple) and len(state) > 1 and state[1] == ">"

    @property
    def torch_name(self) -> str:
        """Torch's name of the dtype; raises a `ValueError` if there is none."""
        code = self.code.lstrip("<>=|")
        name = TORCH_NAMES.get(code, code if code in NUM_BYTES else None)
        if name is None:
            raise ValueError(f"an array has the dtype {self.code[:20]!r}, which no tensor can have,")
        return name


class PickledArray:
    """`numpy.ndarray` in a pickle; all its data is in its state."""

    def __init__(self) -> None:
        self.tensor: LazyTensor | None = None

    def set_state(self, state: Any) -> None:
        """Check that the bytes match the array."""
        match state:
            case (int(), tuple() as shape, PickledDtype() as dtype, bool() | int() as is_fortran, data):
                self.tensor = array_tensor(data, dtype, shape, is_fortran=bool(is_fortran))
            case _:
                raise ValueError("an array has an invalid state")


def array_tensor(data: Any, dtype: PickledDtype, shape: tuple[Any, ...], *, is_fortran: bool) -> LazyTensor:
    """Describe the tensor in the bytes (or text) of an array; raises a `ValueError` if they do not fit its shape."""
    sizes = parse_shape(shape, "an array")
    name = dtype.torch_name
    if not isinstance(data, FileBytes | EncodedText | str):
        raise ValueError("an array has something other than bytes")
    length = len(data.encode()) if isinstance(data, str) else len(data)
    if length != math.prod(sizes) * NUM_BYTES[name]:
        raise ValueError(f"an array of shape {list(sizes)} and dtype {name} has {length} bytes")

    def read() -> Tensor:
        flat = read_flat(_plain_bytes(data), name)
        if dtype.is_big_endian:
            flat = swap_bytes(flat)
        return in_order(flat, sizes, is_fortran=is_fortran)

    return LazyTensor(shape=sizes, dtype=name, read=read)


def in_order(flat: Tensor, shape: tuple[int, ...], *, is_fortran: bool) -> Tensor:
    """Reshape a flat tensor; in Fortran order the first index varies fastest."""
    return (
        flat.reshape(shape[::-1]).permute(*reversed(range(len(shape)))) if is_fortran and shape else flat.reshape(shape)
    )


def swap_bytes(flat: Tensor) -> Tensor:
    """Reverse the bytes of every number; of complex ones, of each part."""
    import torch

    size = flat.element_size() // (2 if flat.is_complex() else 1)
    return flat.view(torch.uint8).reshape(-1, size).flip(1).contiguous().view(-1).view(flat.dtype)


def _plain_bytes(data: FileBytes | EncodedText | str) -> FileBytes:
    if isinstance(data, FileBytes):
        return data
    plain = data.text.encode("latin-1") if isinstance(data, EncodedText) else data.encode()
    return FileBytes(Path(), memoryview(plain))


def _encode(arguments: tuple[Any, ...]) -> EncodedText:
    match arguments:
        case (str() as text, "latin1" | "latin-1") if not text or max(text) <= "\xff":
            return EncodedText(text)
    raise ValueError("the pickle encodes something that is not bytes")


def _scalar(arguments: tuple[Any, ...]) -> Any:
    """Convert a numpy scalar to a plain number."""
    match arguments:
        case (PickledDtype() as dtype, data):
            return array_tensor(data, dtype, (), is_fortran=False).read().item()
    raise ValueError("the pickle makes a number from something else")


def _dtype(arguments: tuple[Any, ...]) -> PickledDtype:
    return PickledDtype(arguments[0] if arguments else None)


def _from_buffer(arguments: tuple[Any, ...]) -> PickledArray:
    """Make an array as in protocol 5: `_frombuffer(data, dtype, shape, order)`."""
    match arguments:
        case (data, PickledDtype() as dtype, tuple() as shape, "C" | "F" as order):
            array = PickledArray()
            array.tensor = array_tensor(data, dtype, shape, is_fortran=order == "F")
            return array
    raise ValueError("an array has invalid arguments")


ARRAY_GLOBALS: Mapping[tuple[str, str], Any] = {
    ("numpy", "dtype"): Known(_dtype),
    ("numpy", "ndarray"): Known(lambda arguments: PickledArray()),
    ("_codecs", "encode"): Known(_encode),
    **{
        (f"numpy.{core}.{module}", name): Known(make)
        for core in ("core", "_core")
        for module, name, make in (
            ("multiarray", "_reconstruct", lambda arguments: PickledArray()),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
    **{("ml_dtypes", name): PickledDtype(name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")},
}
"""The names in pickles of numpy arrays, by numpy 1 and 2."""
