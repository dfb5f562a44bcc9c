"""What every answer is made with: JSON that any parser reads, and the sign by which a browser knows what it has."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from roundoff.runs import JsonValue, to_json


def json_answer(value: JsonValue, *, status: int = 200) -> Response:
    """Return a value as JSON; NaN and the infinities are words, as in the run folder."""
    return json_text(to_json(value), status=status)


def json_text(text: str, *, status: int = 200) -> Response:
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
