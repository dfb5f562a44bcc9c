"""The frame of every page: one file that opens from disk, makes no requests, and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundoff.report.markup import Html, join_html, tag

_ASSETS = Path(__file__).parent / "assets"


def page(
    title: str,
    *body: str,
    styles: Sequence[Html] = (),
    scripts: Sequence[Html] = (),
    drawing: Html | None = None,
    allowed: Sequence[str] = (),
) -> str:
    """Return a whole HTML page with the style sheets and the scripts inside.

    Its content security policy lists their hashes, so a browser runs no other script and sends no request.

    Args:
        title: of the window, and the first heading.
        body: what comes below it; text is escaped unless it is `Html`.
        styles: further style sheets.
        scripts: further scripts, which run after that of all pages, in their order.
        drawing: the library that charts.js draws with, in styles of its own. It is large, so it stays text in an
            element `#drawing` until a chart is drawn.
        allowed: what a page that comes from a server may do beyond that, as a policy says it: `connect-src 'self'`.
    """
    all_styles, all_scripts = [asset("page.css"), *styles], [asset("page.js"), *scripts]
    policy = _policy(styles=all_styles, scripts=all_scripts, drawing=drawing)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content="; ".join([policy, *allowed])),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        *(tag("style", style) for style in all_styles),
    )
    main = tag("main", tag("h1", title), *body)
    asleep = tag("script", drawing, type="text/plain", id="drawing") if drawing else Html("")
    content = tag("body", main, *(tag("script", script) for script in all_scripts), asleep)
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def asset(name: str) -> Html:
    """Return a style sheet or a script that pages have inside."""
    return Html((_ASSETS / name).read_text(encoding="utf-8"))


def _policy(*, styles: Sequence[str], scripts: Sequence[str], drawing: str | None) -> str:
    style_sources = "'unsafe-inline'" if drawing else " ".join(map(_fingerprint, styles))
    pictures = "; img-src data: blob:" if drawing else ""
    script_sources = " ".join(map(_fingerprint, [*scripts, *([drawing] if drawing else [])]))
    return f"default-src 'none'; style-src {style_sources}; script-src {script_sources}{pictures}"


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def section(title: str, *body: str) -> Html:
    """Return a part of a page under a heading of its own."""
    return tag("section", tag("h2", title), join_html(*body))


def facts(pairs: Mapping[str, str]) -> Html:
    """Return names and values side by side."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()), class_="facts")
