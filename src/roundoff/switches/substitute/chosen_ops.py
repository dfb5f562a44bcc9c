"""The chosen ops of a training: a list of keys, from whole modules down to one op in one phase."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from roundoff.errors import SwitchError
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.ops.interceptor import OpPlace

_FURTHER_MODEL: Final = re.compile(r"(?:[^\W\d]\w*(?:#\d+)?|[^:]*[*?\[][^:]*):[^:]*")
"""The site of a further model: its class, or a pattern for it, a colon, and the path of a module."""


class ChosenOps:
    """The ops that a list of keys names; all of them if there is no list.

    A key is a site, `blocks.1.attn`, which means the ops of that module's own code in all phases and not those of its
    children; a site and a phase, `blocks.1.attn:backward`; or both and an op, `blocks.1.attn:backward:aten.mm`. Each
    part may be a shell pattern: `*:backward:aten.gelu*`.
    """

    def __init__(self, keys: Iterable[str] | None) -> None:
        self._keys = None if keys is None else {key: _parse_key(key) for key in keys}
        self._unused = set(self._keys or ())
        self._known: dict[OpPlace, bool] = {}

    @classmethod
    def from_text(cls, text: str | None) -> ChosenOps:
        """Read a JSON list of keys, or keys separated by commas; None means all ops, an empty string none.

        Raises:
            SwitchError: it is neither, or a key is invalid.
        """
        if text is None:
            return cls(None)
        if not text.lstrip().startswith("["):
            return cls(key.strip() for key in text.split(",") if key.strip())
        try:
            keys = json.loads(text)
        except json.JSONDecodeError as error:
            raise _list_error(text, f"it starts like a JSON list, but is not valid JSON: {error}") from error
        if not all(isinstance(key, str) for key in keys):
            raise _list_error(text, "every key must be a string")
        return cls(keys)

    @property
    def unused(self) -> list[str]:
        """Keys that no op has matched so far."""
        return [key for key in self._keys or () if key in self._unused]

    def has(self, place: OpPlace) -> bool:
        """Whether an op is chosen.

        Raises:
            SwitchError: a key is this op's site and something that is not a phase.
        """
        if self._keys is None:
            return True
        known = self._known.get(place)
        if known is None:
            self._refuse_other_phases(place.site)
            matching = [key for key, parts in self._keys.items() if _matches_place(parts, place)]
            self._unused.difference_update(matching)
            known = self._known[place] = bool(matching)
        return known

    def _refuse_other_phases(self, site: str) -> None:
        """Raise if what looked like a site of a further model, `head:sideways`, is a site with a misspelt phase."""
        for key, parts in (self._keys or {}).items():
            if parts[0] == key and key.rpartition(":")[0] == site:
                raise _key_error(key)


def _parse_key(key: str) -> tuple[str, str, str]:
    """Split a key from its end: the site of a further model contains a colon, `Critic:head`."""
    site, _, last = key.rpartition(":")
    if last in PHASES and site:
        return site, last, "*"
    before, _, phase = site.rpartition(":")
    if phase in (*PHASES, "*") and before and "." in last.replace("*", "."):
        return before, phase, last
    if not key:
        raise SwitchError.explain("An empty key names no op.", fix="write a site, `blocks.1.attn`.")
    if ":" in key and not _FURTHER_MODEL.fullmatch(key):
        raise _key_error(key)
    return key, "*", "*"


def _matches_place(parts: tuple[str, str, str], place: OpPlace) -> bool:
    return all(part == name or fnmatchcase(name, part) for part, name in zip(parts, place, strict=True))


def _key_error(key: str) -> SwitchError:
    return SwitchError.explain(
        f"substitute.ops: '{key}' names no ops.",
        why=f"a site is followed by a phase ({', '.join(PHASES)}), and that by an op with its library, aten.mm.",
        fix="write site, site:phase or site:phase:op: blocks.1.attn:backward:aten.mm",
    )


def _list_error(text: str, why: str) -> SwitchError:
    shown = text if len(text) < 80 else f"{text[:80]}..."
    return SwitchError.explain(
        f"substitute.ops = {shown!r} is not a list of ops.",
        why=f"{why}.",
        fix='write keys separated by commas, or as JSON: ["blocks.1.attn:backward:aten.mm"].',
    )
