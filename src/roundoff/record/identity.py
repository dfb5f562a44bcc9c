"""Collections that know objects by identity and do not keep them alive.

The user's modules may define `==`, `hash` and `bool` in any way, or raise in them; none of these is called here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, overload
from weakref import ref

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def live_instances(*classes: type) -> list[Any]:
    """Return the living objects of some classes and of their subclasses, known to the garbage collector.

    Their types are compared, by identity: `isinstance` would have lazy proxies load what they stand for.

    >>> class Found: pass
    >>> kept = Found()
    >>> live_instances(Found) == [kept]
    True
    """
    waiting, kinds = list(classes), set[int]()
    while waiting:
        kind = waiting.pop()
        if id(kind) not in kinds:
            kinds.add(id(kind))
            waiting.extend(type.__subclasses__(kind))
    return [found for found in gc.get_objects() if id(type(found)) in kinds]


class IdentityDict(Generic[_Key, _Value]):
    """A mapping from objects, by identity, that forgets an object when it dies.

    >>> class Odd:
    ...     def __eq__(self, other): raise RuntimeError
    >>> odd, names = Odd(), IdentityDict()
    >>> names[odd] = "first"
    >>> names.get(odd), names.get(Odd()), len(names)
    ('first', None, 1)
    >>> del odd
    >>> len(names)
    0
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[_Key], _Value]] = {}

    def __setitem__(self, key: _Key, value: _Value) -> None:
        entries, number = self._entries, id(key)

        def forget(dead: ref[_Key]) -> None:
            if number in entries and entries[number][0] is dead:
                del entries[number]

        entries[number] = (ref(key, forget), value)

    def __getitem__(self, key: _Key) -> _Value:
        reference, value = self._entries[id(key)]
        if reference() is not key:
            raise KeyError(id(key))
        return value

    def __contains__(self, key: Any) -> bool:
        entry = self._entries.get(id(key))
        return entry is not None and entry[0]() is key

    def __iter__(self) -> Iterator[_Key]:
        for reference, _ in list(self._entries.values()):
            if (key := reference()) is not None:
                yield key

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def get(self, key: _Key) -> _Value | None: ...
    @overload
    def get(self, key: _Key, default: _Value) -> _Value: ...
    def get(self, key: _Key, default: _Value | None = None) -> _Value | None:
        """Return the value of an object, or the default if it has none."""
        entry = self._entries.get(id(key))
        return default if entry is None or entry[0]() is not key else entry[1]

    def setdefault(self, key: _Key, value: _Value) -> _Value:
        """Return the value of an object, which is set to `value` if it had none."""
        if key not in self:
            self[key] = value
        return self[key]

    def values(self) -> list[_Value]:
        """Return the values of the objects that are alive."""
        return [value for reference, value in list(self._entries.values()) if reference() is not None]

    def items(self) -> Iterator[tuple[_Key, _Value]]:
        """Yield the objects that are alive, with their values."""
        for reference, value in list(self._entries.values()):
            if (key := reference()) is not None:
                yield key, value


class IdentitySet(Generic[_Key]):
    """A set of objects, by identity, in the order in which they were added, that forgets those that die."""

    def __init__(self, items: Iterable[_Key] = ()) -> None:
        self._items: IdentityDict[_Key, None] = IdentityDict()
        for item in items:
            self.add(item)

    def add(self, item: _Key) -> None:
        """Add an object, if it is not there."""
        self._items.setdefault(item, None)

    def alive(self) -> list[_Key]:
        """Return the objects, as iterating does, in less time."""
        return [key for reference, _ in list(self._items._entries.values()) if (key := reference()) is not None]

    def __contains__(self, item: Any) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
