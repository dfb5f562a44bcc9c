"""The frame of every page: one file that opens from disk, asks nobody for anything, and runs no script but ours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from roundoff.report.markup import Html, joined, tag

_ASSETS = Path(__file__).parent / "assets"


def page(title: str, *body: str) -> str:
    """Return a whole HTML page with the style sheet and the script inside.

    A browser is told the fingerprints of both and runs nothing else: neither a script that slipped into the body nor
    a request to anywhere.
    """
    style, script = _asset("page.css"), _asset("page.js")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style=style, script=script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )
    content = tag("body", tag("main", tag("h1", title), *body), tag("script", script))
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def _asset(name: str) -> Html:
    return Html((_ASSETS / name).read_text(encoding="utf-8"))


def _policy(*, style: str, script: str) -> str:
    return f"default-src 'none'; style-src {_fingerprint(style)}; script-src {_fingerprint(script)}"


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def section(title: str, *body: str) -> Html:
    """Return a part of a page under a heading of its own."""
    return tag("section", tag("h2", title), joined(*body))


def facts(pairs: Mapping[str, str]) -> Html:
    """Return names and values side by side."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()), class_="facts")
