"""Stands before every answer: who may ask, and what a browser may do with the answer."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roundoff.serve.http import Refusal, refusal_response

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\s:/@\[\]]+))(?::\d{1,5})?")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "SAMEORIGIN",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # kept, and asked about each time: 304 if it is still so
}
"""Of every answer."""
PAGE_POLICY = "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
"""Beside what each page says of itself: the fingerprints of its scripts, and nothing else."""
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Where the server listens, and what it wants to see."""

    names: frozenset[str]
    """What the server may be called, in small letters; addresses are known without."""
    is_loopback: bool
    token: str | None = None
    cookie: str = "roundoff-token"

    def knows(self, name: str) -> bool:
        """Say whether a Host header may name this; any name that a stranger can point at us is refused.

        An address is one that nobody can point elsewhere; it is enough unless only this machine may ask.
        """
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return address.is_loopback or not self.is_loopback

    def opens_for(self, token: str) -> bool:
        """Say whether this is the token; how long that takes tells nothing about it."""
        return self.token is not None and hmac.compare_digest(token.encode(errors="replace"), self.token.encode())


def host_names(host: str, *, is_loopback: bool) -> frozenset[str]:
    """Return what a server may be called that listens at `host`; who cannot come from elsewhere needs no other name."""
    elsewhere = () if is_loopback else (socket.gethostname(), socket.getfqdn())
    return frozenset(name.lower() for name in ("localhost", host, *elsewhere))


class Guard:
    """An application behind a door."""

    def __init__(self, app: ASGIApp, door: AccessPolicy) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused, hand on what is not, and put the headers on both."""
        assert scope["type"] == "http", "the server speaks nothing else"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(raw=message["headers"]))
            await send(message)

        request = Request(scope)
        try:
            answer = self._answer(request)
        except Refusal as refusal:
            answer = refusal_response(request, refusal)
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer if the door has one; a `Refusal` says why it stays closed."""
        self._check_host(request)
        if request.method not in ("GET", "HEAD"):
            raise Refusal(405, f"{request.method} is not answered.", why="nothing here can be changed.", fix="use GET.")
        if self._door.token is None:
            return None
        asked = request.query_params.getlist("token")
        if asked and self._door.opens_for(asked[-1]):
            return self._let_in(request, asked[-1])
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._door.opens_for(given.strip()):
            return None
        if self._door.opens_for(request.cookies.get(self._door.cookie, "")):
            return None
        raise Refusal(
            401,
            "This needs the token that the server printed when it was started.",
            why="what was sent is another one." if asked or given else "none was sent.",
            fix="open the address that it printed, or send 'Authorization: Bearer TOKEN'.",
        )

    def _let_in(self, request: Request, token: str) -> Response:
        """Keep the token as a cookie, and out of the address: addresses are shown, logged and shared."""
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        path = request.scope.get("raw_path", b"/").decode("ascii", errors="replace")
        path = "/" + path.lstrip("/")  # two slashes in front would lead to another host
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, status_code=303)
        answer.set_cookie(self._door.cookie, token, httponly=True, samesite="lax", path="/")
        answer.headers["cache-control"] = "no-store"
        return answer

    def _check_host(self, request: Request) -> None:
        given = request.headers.getlist("host")
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            raise Refusal(400, "The Host header is missing or makes no sense.", fix="send one, as every browser does.")
        name = (found["v6"] or found["name"]).lower().rstrip(".")
        if not self._door.knows(name):
            raise Refusal(
                421,
                f"'{name}' is no name of this server.",
                why="a page elsewhere could lead a browser here under any name, so only known ones are answered.",
                fix="open it by its IP address, or start it with --host NAME.",
            )


def _add_headers(headers: MutableHeaders) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    is_page = headers.get("content-type", "").startswith("text/html")
    headers.setdefault("content-security-policy", PAGE_POLICY if is_page else DATA_POLICY)
