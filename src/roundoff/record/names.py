"""Strings that rows hold as numbers."""

from __future__ import annotations


class Names:
    """Strings that rows hold as numbers."""

    def __init__(self, *values: str) -> None:
        self.values: list[str] = list(values)
        self._codes = {value: code for code, value in enumerate(values)}

    def code(self, value: str) -> int:
        """Return the number of a string, given it anew if it was not known."""
        known = self._codes.get(value)
        if known is None:
            known = self._codes[value] = len(self.values)
            self.values.append(value)
        return known
