"""What every answer is made with: JSON that any parser reads, and the sign by which a browser knows what it has."""

from __future__ import annotations

import re
import secrets

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from roundoff.report.markup import tag
from roundoff.runs import JsonValue, to_json
from roundoff.serve.served_page import served_page


def json_response(value: JsonValue, *, status: int = 200) -> Response:
    """Return a value as JSON; NaN and the infinities are words, as in the run folder."""
    return json_text_response(to_json(value), status=status)


def json_text_response(text: str, *, status: int = 200) -> Response:
    """Return what is JSON already."""
    return Response(text.encode(), status_code=status, media_type="application/json")


class Etags:
    """Signs of what was sent; those of another process, which may be another version of us, are not known."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(4)

    def page(self, request: Request, stamp: str, *, html: bytes, packed: bytes) -> Response:
        """Return a page, packed where the browser unpacks it; nothing but its sign where the browser has it already."""
        sign = f'W/"{self._process}-{stamp}"'
        headers = {"etag": sign, "vary": "accept-encoding"}
        if sign in {each.strip() for each in request.headers.get("if-none-match", "").split(",")}:
            return Response(status_code=304, headers=headers)
        words = {each.split(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        if "gzip" in words:
            return HTMLResponse(packed, headers={**headers, "content-encoding": "gzip"})
        return HTMLResponse(html, headers=headers)


# == What is not answered as it was asked: a status and sentences, as a page or as JSON.

_HEADERS = {401: {"www-authenticate": "Bearer"}, 405: {"allow": "GET, HEAD"}}
"""By status: what must be said beside the sentence."""


class Refusal(Exception):
    """A request that is not answered, and why: `status` is that of HTTP."""

    def __init__(self, status: int, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.status, self.what, self.why, self.fix = status, what, why, fix

    @classmethod
    def of_error(cls, status: int, error: Exception) -> Refusal:
        """Return the refusal that says what one of our errors says."""
        what, *lines = str(error).split("\n")
        said = {word: text for word, _, text in (line.strip().partition(": ") for line in lines)}
        return cls(status, what, why=said.get("why"), fix=said.get("fix"))


def refusal_response(request: Request, refusal: Refusal) -> Response:
    """Return the answer that says so: JSON below /api/, a page elsewhere."""
    said = {"error": refusal.what, "why": refusal.why, "fix": refusal.fix}
    if request.url.path.startswith("/api/"):
        answer = json_response({name: text for name, text in said.items() if text}, status=refusal.status)
    else:
        words = [tag("p", f"{name}: {text}") for name, text in said.items() if text and name != "error"]
        back = tag("p", tag("a", "All runs", href="/", target="_top"))
        answer = HTMLResponse(served_page(refusal.what, *words, back), status_code=refusal.status)
    answer.headers.update(_HEADERS.get(refusal.status, {}))
    return answer


# == What a request asks for, checked: a number is a number, and a misspelt word is told, not ignored.

_NUMBER = re.compile(r"[0-9]{1,12}")


def check_query(request: Request, *known: str) -> None:
    """Refuse a request that asks with a word nobody knows: its answer would look as if it had been heeded."""
    for name in request.query_params:
        if name not in known:
            why = f"known are {', '.join(known)}." if known else "nothing can be asked for here."
            raise Refusal(400, f"'{name}' cannot be asked for.", why=why)


def query_number(request: Request, name: str, *, default: int | None = None, most: int | None = None) -> int | None:
    """Return a number from 0 on, or the default if it is not asked for."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or (most is not None and int(text) > most):
        limit = "" if most is None else f" to {most}"
        raise Refusal(400, f"{name}={text} makes no sense.", why=f"it is a whole number from 0{limit}.")
    return int(text)


def text(request: Request, name: str, *, most: int) -> str | None:
    """Return words, or None if they are not asked for."""
    asked = request.query_params.get(name)
    if asked is not None and len(asked) > most:
        raise Refusal(400, f"{name}={asked[:40]}... makes no sense.", why=f"it has at most {most} letters.")
    return asked


def required_query(request: Request, name: str) -> str:
    """Return a word that must be there."""
    text = request.query_params.get(name)
    if not text:
        raise Refusal(400, f"It is not said which {name}.", fix=f"add {name}=... to the address.")
    return text
