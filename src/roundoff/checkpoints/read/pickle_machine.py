"""Reads pickles without executing anything: every instruction builds plain data or an inert stand-in."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from roundoff.checkpoints.checkpoint import TENSOR_BYTES
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickled_objects import (
    Global,
    Known,
    PickledArray,
    PickledDtype,
    PickledObject,
    is_dangerous,
)

MAX_INSTRUCTIONS = 5_000_000
"""The limit: a model of 10,000 tensors takes half a million instructions, and each may use some memory."""

_SLOT_BYTES, _ITEM_BYTES, _OBJECT_BYTES = 10, 110, 160
"""What a place in a list, an item of a dict, and an object without its fields take in memory."""

_LONG_TEXT = 2**20

MARK = object()

FindGlobal = Callable[[str, str], Any]
LoadPersistent = Callable[[Any], Any]


def unpickle(
    data: FileBytes,
    *,
    start: int = 0,
    globals: FindGlobal,
    persistent: LoadPersistent | None = None,
    limit: int | None = None,
) -> tuple[Any, int]:
    """Return the value of a pickle, and the position after it.

    Byte strings are parts of the file, not read yet. `globals` returns the stand-in for a name: a `Known`, a constant,
    or a `Global`, which becomes an inert `PickledObject` when it is called. Stand-ins raise a `ValueError`.
    A pickle with more than `limit` instructions is an error.
    """
    machine = _Machine(data, start, globals, persistent, limit or MAX_INSTRUCTIONS)
    return machine.run(), machine.position


class _Machine:
    def __init__(
        self, data: FileBytes, start: int, find_global: FindGlobal, persistent: LoadPersistent | None, limit: int
    ) -> None:
        self.position = start
        self._data = data
        self._find_global = find_global
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._limit = self._budget = limit
        self._memory = data.budget

    def run(self) -> Any:
        while True:
            begin = self.position
            code = self._bytes(1)[0]
            if code == STOP:
                return self._pop()
            if code not in INSTRUCTIONS:
                raise self._data.error(f"the pickle has the unknown instruction {code:#04x}", at=begin)
            try:
                self._spend(1)
                INSTRUCTIONS[code](self)
            except (ValueError, OverflowError) as error:
                raise self._data.error(str(error), at=begin) from error

    def _spend(self, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            raise ValueError(f"the pickle takes more than {self._limit} instructions")

    # Reading from the file.

    def _bytes(self, length: int) -> memoryview:
        taken = self._data.at(self.position, length, "the pickle")
        self.position += length
        return taken

    def skip(self, length: int) -> None:
        self._bytes(length)

    def _part(self, length: int) -> FileBytes:
        taken = self._data.part(self.position, length, "the pickle")
        self.position += length
        return taken

    def _count(self, num_bytes: int) -> int:
        return int.from_bytes(self._bytes(num_bytes), "little")

    def _line(self) -> str:
        for length in range(MAX_LINE_BYTES):
            if self._data.at(self.position + length, 1, "the pickle")[0] == NEWLINE:
                line = str(self._bytes(length), "utf-8")
                self.position += 1
                return line
        raise ValueError(f"the pickle has a line of more than {MAX_LINE_BYTES} bytes")

    # The stack.

    def push(self, value: Any) -> None:
        self._memory.spend(_SLOT_BYTES)
        self._stack.append(value)

    def push_new(self, value: Any) -> None:
        """Push a value that this instruction made, and account for its memory."""
        self._memory.spend(sys.getsizeof(value))
        self.push(value)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is MARK:
            raise self._data.error("the pickle pops from an empty stack", at=self.position)
        return self._stack.pop()

    def _top(self) -> Any:
        value = self._pop()
        self._stack.append(value)
        return value

    def _to_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is MARK:
                taken = self._stack[place + 1 :]
                del self._stack[place:]
                return taken
        raise ValueError("the pickle has no mark on its stack")

    def pop(self) -> None:
        if not self._stack:
            raise ValueError("the pickle pops from an empty stack")
        self._stack.pop()

    def pop_mark(self) -> None:
        self._to_mark()

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise ValueError(f"the pickle refers to {index}, which is not in its memo")
        self.push(self._memo[index])

    def put(self, index: int) -> None:
        self._memory.spend(_ITEM_BYTES)
        self._memo[index] = self._top()

    # Values.

    def text(self, length: int) -> None:
        if length > _LONG_TEXT:
            self._memory.spend(4 * length)  # one character decides how wide all of them are
        self.push_new(str(self._bytes(length), "utf-8", "replace"))

    def string_of_python_2(self, length: int) -> None:
        raw = self._part(length)
        try:
            self.push_new(str(bytes(raw), "utf-8"))
        except UnicodeDecodeError:
            self.push_new(raw)

    def integer(self, num_bytes: int) -> None:
        self.push_new(int.from_bytes(self._bytes(num_bytes), "little", signed=True))

    def tuple_of(self, length: int) -> None:
        items = [self._pop() for _ in range(length)]
        self.push_new(tuple(reversed(items)))

    def dict_to_mark(self) -> None:
        items = self._to_mark()
        made: dict[Any, Any] = {}
        self._memory.spend(_ITEM_BYTES * len(items) // 2)
        _set_items(made, items)
        self.push_new(made)

    # Filling containers.

    def _fill_list(self, values: list[Any]) -> None:
        target = self._top()
        if type(target) is list:
            self._memory.spend(_SLOT_BYTES * len(values))
            target.extend(values)
        elif not isinstance(target, PickledObject):  # the list items of other objects are ignored
            raise ValueError("the pickle appends to something that is not a list")

    def _fill_dict(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, PickledObject):
            target.items = target.items or {}
            target = target.items
        if type(target) is not dict:
            raise ValueError("the pickle sets an item of something that is not a dict")
        self._memory.spend(_ITEM_BYTES * len(items) // 2)
        _set_items(target, items)

    # Names, calls and state.

    def global_by_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("the pickle names a global by something that is not a string")
        self._push_global(module, name)

    def _push_global(self, module: str, name: str) -> None:
        self._memory.spend(_OBJECT_BYTES)
        found = self._find_global(module, name)
        if isinstance(found, Global) and is_dangerous(found):
            raise self._data.error(
                f"the pickle refers to {found}, which can execute code and which no checkpoint needs,",
                at=self.position,
                fix="do not load it with another program; ask its author.",
            )
        self.push(found)

    def reduce(self) -> None:
        arguments, called = self._pop(), self._pop()
        self.push(self._call(called, arguments))

    def new_object_with_keywords(self) -> None:
        keywords, arguments, called = self._pop(), self._pop(), self._pop()
        made = self._call(called, arguments)
        if isinstance(made, PickledObject) and type(keywords) is dict:
            self._spend(len(keywords))
            self._memory.spend(sys.getsizeof(keywords))
            made.items = dict(keywords)
        self.push(made)

    def instance_by_lines(self) -> None:
        module, name = self._line(), self._line()
        arguments = tuple(self._to_mark())
        self._push_global(module, name)
        self.push(self._call(self._pop(), arguments))

    def object_to_mark(self) -> None:
        called, *arguments = self._to_mark() or [None]
        self.push(self._call(called, tuple(arguments)))

    def _call(self, called: Any, arguments: Any) -> Any:
        if type(arguments) is not tuple:
            raise ValueError("the pickle calls something without a tuple of arguments")
        self._spend(_size(arguments))
        self._memory.spend(_OBJECT_BYTES if isinstance(called, Global) else TENSOR_BYTES)
        if isinstance(called, Known):
            self._memory.spend(_ITEM_BYTES * _size(arguments))
            return called.make(arguments)
        if isinstance(called, Global):
            return PickledObject(made_by=called, arguments=arguments)
        raise ValueError("the pickle calls something that is not a class")

    def build(self) -> None:
        state = self._pop()
        target = self._top()
        if isinstance(target, PickledObject | PickledArray | PickledDtype):
            self._spend(_size(state))
            self._memory.spend(_ITEM_BYTES * _size(state) + _OBJECT_BYTES)
            target.set_state(state)

    def persistent_by_stack(self) -> None:
        reference = self._pop()
        if self._persistent is None:
            raise ValueError("the pickle refers to something outside it")
        self._memory.spend(TENSOR_BYTES)
        self.push(self._persistent(reference))


def _size(value: Any) -> int:
    """Return the cost of a shallow copy of the value, in instructions; strings are cheap."""
    parts = value if isinstance(value, tuple) else (value,)
    containers = sum(len(part) for part in parts if isinstance(part, list | tuple | dict))
    return containers + sum(len(part) for part in parts if isinstance(part, str)) // 1000


def _set_items(target: dict[Any, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise ValueError("the pickle sets a key without a value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not _can_be_key(key):
            raise ValueError(f"the pickle has a key of type {type(key).__name__}")
        target[key] = value


def _can_be_key(key: Any) -> bool:
    """Return whether hashing the key is fast: nested tuples can take forever, large numbers can collide."""
    if isinstance(key, tuple):
        return len(key) <= 16 and all(not isinstance(part, tuple) and _can_be_key(part) for part in key)
    if type(key) is int:
        return -(2**63) <= key < 2**64
    return key is None or isinstance(key, str | float | bool | PickledObject | Global | Known)


def _quote(line: str) -> str:
    if len(line) < 2 or line[0] != line[-1] or line[0] not in "'\"":
        raise ValueError("the pickle has a string without quotes")
    return line[1:-1]


def _plain_number(line: str) -> int | bool:
    return {"00": False, "01": True}[line] if line in ("00", "01") else int(line.removesuffix("L"))


STOP = ord(".")
NEWLINE = ord("\n")
MAX_LINE_BYTES = 2000

INSTRUCTIONS: dict[int, Callable[[_Machine], None]] = {
    code[0]: action
    for code, action in {
        # frames and protocol
        b"\x80": lambda m: m.skip(1),
        b"\x95": lambda m: m.skip(8),
        # the stack and the memo
        b"(": lambda m: m.push(MARK),
        b"0": _Machine.pop,
        b"1": _Machine.pop_mark,
        b"2": lambda m: m.push(m._top()),
        b"g": lambda m: m.get(int(m._line())),
        b"h": lambda m: m.get(m._count(1)),
        b"j": lambda m: m.get(m._count(4)),
        b"p": lambda m: m.put(int(m._line())),
        b"q": lambda m: m.put(m._count(1)),
        b"r": lambda m: m.put(m._count(4)),
        b"\x94": lambda m: m.put(len(m._memo)),
        # numbers
        b"N": lambda m: m.push(None),
        b"\x88": lambda m: m.push(True),
        b"\x89": lambda m: m.push(False),
        b"I": lambda m: m.push_new(_plain_number(m._line())),
        b"L": lambda m: m.push_new(_plain_number(m._line())),
        b"F": lambda m: m.push_new(float(m._line())),
        b"J": lambda m: m.integer(4),
        b"K": lambda m: m.push_new(m._count(1)),
        b"M": lambda m: m.push_new(m._count(2)),
        b"\x8a": lambda m: m.integer(m._count(1)),
        b"\x8b": lambda m: m.integer(m._count(4)),
        b"G": lambda m: m.push_new(struct.unpack(">d", m._bytes(8))[0]),
        # strings and bytes
        b"S": lambda m: m.push_new(_quote(m._line())),
        b"V": lambda m: m.push_new(m._line()),
        b"T": lambda m: m.string_of_python_2(m._count(4)),
        b"U": lambda m: m.string_of_python_2(m._count(1)),
        b"X": lambda m: m.text(m._count(4)),
        b"\x8c": lambda m: m.text(m._count(1)),
        b"\x8d": lambda m: m.text(m._count(8)),
        b"B": lambda m: m.push_new(m._part(m._count(4))),
        b"C": lambda m: m.push_new(m._part(m._count(1))),
        b"\x8e": lambda m: m.push_new(m._part(m._count(8))),
        b"\x96": lambda m: m.push_new(m._part(m._count(8))),
        # containers
        b")": lambda m: m.push(()),
        b"]": lambda m: m.push_new([]),
        b"}": lambda m: m.push_new({}),
        b"\x8f": lambda m: m.push_new([]),
        b"t": lambda m: m.push_new(tuple(m._to_mark())),
        b"l": lambda m: m.push_new(m._to_mark()),
        b"\x91": lambda m: m.push_new(m._to_mark()),
        b"d": _Machine.dict_to_mark,
        b"\x85": lambda m: m.tuple_of(1),
        b"\x86": lambda m: m.tuple_of(2),
        b"\x87": lambda m: m.tuple_of(3),
        b"a": lambda m: m._fill_list([m._pop()]),
        b"e": lambda m: m._fill_list(m._to_mark()),
        b"\x90": lambda m: m._fill_list(m._to_mark()),
        b"s": lambda m: m._fill_dict([m._pop(), m._pop()][::-1]),
        b"u": lambda m: m._fill_dict(m._to_mark()),
        # names, calls, state
        b"c": lambda m: m._push_global(m._line(), m._line()),
        b"\x93": _Machine.global_by_stack,
        b"i": _Machine.instance_by_lines,
        b"o": _Machine.object_to_mark,
        b"R": _Machine.reduce,
        b"\x81": _Machine.reduce,
        b"\x92": _Machine.new_object_with_keywords,
        b"b": _Machine.build,
        b"Q": _Machine.persistent_by_stack,
    }.items()
}
"""The instructions; sets become lists, and references to other pickles or extensions are ignored."""
