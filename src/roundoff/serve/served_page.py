"""The frame of pages that only a server has: their scripts may send requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from roundoff.report.markup import Html
from roundoff.report.page import asset, page

_ASSETS = Path(__file__).parent / "assets"
_ALLOWED = ("connect-src 'self'", "frame-src 'self'", "form-action 'self'", "base-uri 'none'")


def served_page(title: str, *body: str, scripts: Sequence[str] = (), styles: Sequence[str] = ()) -> bytes:
    """Return a page with the named scripts and style sheets of the server."""
    text = page(
        title,
        *body,
        styles=[asset("run_page.css"), _own("serve.css"), *map(_own, styles)],
        scripts=list(map(_own, scripts)),
        allowed=_ALLOWED,
    )
    return text.encode(errors="replace")


def run_link(run: str, *more: str, **query: str | int) -> str:
    """Return the URL of something about a run; the name of a run may contain any character.

    >>> run_link("a b<c>", "tensors", step=3)
    '/runs/a%20b%3Cc%3E/tensors?step=3'
    """
    path = "/".join(["/runs", quote(run, safe="", errors="replace"), *more])
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def compare_link(*, reference: str, candidate: str, more: str = "") -> str:
    """Return the URL of a comparison of two runs."""
    return f"/compare{more}?{urlencode({'reference': reference, 'candidate': candidate}, errors='replace')}"


def _own(name: str) -> Html:
    return Html((_ASSETS / name).read_text(encoding="utf-8"))
