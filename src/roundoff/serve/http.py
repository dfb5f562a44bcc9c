"""Reading requests and writing responses: checked parameters, JSON, pages, ETags, links and refusals."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from roundoff.report.markup import Html, tag
from roundoff.report.page import asset, page
from roundoff.runs import JsonValue, to_json

_ASSETS = Path(__file__).parent / "assets"
_ALLOWED = ("connect-src 'self'", "frame-src 'self'", "form-action 'self'", "base-uri 'none'")


def served_page(
    title: str, *body: str, scripts: Sequence[str] = (), styles: Sequence[str] = (), drawing: Html | None = None
) -> bytes:
    """Return a page with the named scripts and style sheets of the server; `drawing` is what charts are drawn with."""
    text = page(
        title,
        *body,
        styles=[asset("run_page.css"), _own("serve.css"), *map(_own, styles)],
        scripts=[*([asset("charts.js")] if drawing else []), *map(_own, scripts)],
        drawing=drawing,
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


def json_response(value: JsonValue, *, status: int = 200) -> Response:
    """Return a value as JSON; NaN and infinities are strings, as in the run folder."""
    return json_text_response(to_json(value), status=status)


def json_text_response(text: str, *, status: int = 200) -> Response:
    """Return a text that is JSON already."""
    return Response(text.encode(), status_code=status, media_type="application/json")


class Etags:
    """ETags of pages; those of another process, which may be another version of roundoff, are invalid."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(4)

    def page(self, request: Request, stamp: str, *, html: bytes, packed: bytes) -> Response:
        """Return a page, compressed if the browser supports it, or 304 if the browser has it already."""
        sign = f'W/"{self._process}-{stamp}"'
        headers = {"etag": sign, "vary": "accept-encoding"}
        if sign in {each.strip() for each in request.headers.get("if-none-match", "").split(",")}:
            return Response(status_code=304, headers=headers)
        words = {each.split(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        if "gzip" in words:
            return HTMLResponse(packed, headers={**headers, "content-encoding": "gzip"})
        return HTMLResponse(html, headers=headers)


_HEADERS = {401: {"www-authenticate": "Bearer"}, 405: {"allow": "GET, HEAD"}}
"""Headers that HTTP requires, by status."""


class Refusal(Exception):
    """A request that is refused, and why; `status` is the HTTP status."""

    def __init__(self, status: int, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.status, self.what, self.why, self.fix = status, what, why, fix

    @classmethod
    def of_error(cls, status: int, error: Exception) -> Refusal:
        """Return a refusal with the text of an error."""
        what, *lines = str(error).split("\n")
        said = {word: text for word, _, text in (line.strip().partition(": ") for line in lines)}
        return cls(status, what, why=said.get("why"), fix=said.get("fix"))


def refusal_response(request: Request, refusal: Refusal) -> Response:
    """Return the response to a refused request: JSON below /api/, a page elsewhere."""
    said = {"error": refusal.what, "why": refusal.why, "fix": refusal.fix}
    if request.url.path.startswith("/api/"):
        answer = json_response({name: text for name, text in said.items() if text}, status=refusal.status)
    else:
        words = [tag("p", f"{name}: {text}") for name, text in said.items() if text and name != "error"]
        back = tag("p", tag("a", "All runs", href="/", target="_top"))
        answer = HTMLResponse(served_page(refusal.what, *words, back), status_code=refusal.status)
    answer.headers.update(_HEADERS.get(refusal.status, {}))
    return answer


_NUMBER = re.compile(r"[0-9]{1,12}")


def check_query(request: Request, *known: str) -> None:
    """Refuse a request with an unknown parameter, instead of ignoring the parameter."""
    for name in request.query_params:
        if name not in known:
            why = f"known parameters: {', '.join(known)}." if known else "this URL takes no parameters."
            raise Refusal(400, f"There is no parameter '{name}'.", why=why)


def query_number(request: Request, name: str, *, default: int | None = None, most: int | None = None) -> int | None:
    """Return a number that is not negative, or the default if the parameter is missing."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or (most is not None and int(text) > most):
        limit = "" if most is None else f" to {most}"
        raise Refusal(400, f"{name}={text} is invalid.", why=f"it must be an integer from 0{limit}.")
    return int(text)


def text(request: Request, name: str, *, most: int) -> str | None:
    """Return a text, or None if the parameter is missing."""
    value = request.query_params.get(name)
    if value is not None and len(value) > most:
        raise Refusal(400, f"{name}={value[:40]}... is invalid.", why=f"it must have at most {most} characters.")
    return value


def required_query(request: Request, name: str) -> str:
    """Return a parameter that must be given."""
    text = request.query_params.get(name)
    if not text:
        raise Refusal(400, f"The parameter '{name}' is missing.", fix=f"add {name}=... to the URL.")
    return text
