"""HTML that escapes all text that is not HTML already."""

from __future__ import annotations

import html

_EMPTY = frozenset({"br", "circle", "img", "input", "line", "meta", "path", "polyline", "rect"})
"""Elements that hold nothing and have no end."""


class Html(str):
    """A text that is HTML already, and is put into other HTML as it is."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | int | float | bool | None) -> Html:
    """Return an element around `children`, which are escaped unless they are `Html`.

    Attributes are named as in Python: `class_` is class, `aria_label` is aria-label. One that is None or False is left
    out, one that is True has no value.

    >>> tag("td", "a < b", class_="number", hidden=False)
    '<td class="number">a &lt; b</td>'
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        assert not children, f"<{name}> holds nothing"
        return Html(f"<{name}{words}/>")
    return Html(f"<{name}{words}>{join_html(*children)}</{name}>")


def join_html(*children: str) -> Html:
    """Return several pieces as one; text among them is escaped."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
