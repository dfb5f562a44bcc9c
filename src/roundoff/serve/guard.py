"""Checks every request first: who may connect, and what a browser may do with the response."""

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
    "cache-control": "no-cache",  # cached, but validated each time: 304 if unchanged
}
"""Headers of every response."""
PAGE_POLICY = "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
"""In addition to the policy of each page itself, which lists the hashes of its scripts."""
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Which host names and which token a request must have."""

    names: frozenset[str]
    """Valid host names of the server, in lower case; IP addresses need not be listed."""
    is_loopback: bool
    token: str | None = None
    cookie: str = "roundoff-token"

    def knows_host(self, name: str) -> bool:
        """Whether a Host header may contain this name; one that others could point at this server is refused.

        An IP address cannot be pointed elsewhere: it is valid unless only this machine may connect.
        """
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return address.is_loopback or not self.is_loopback

    def accepts(self, token: str) -> bool:
        """Whether this is the token, in constant time."""
        return self.token is not None and hmac.compare_digest(token.encode(errors="replace"), self.token.encode())


def host_names(host: str, *, is_loopback: bool) -> frozenset[str]:
    """Return the names of a server that listens on `host`; a loopback server needs only the local ones."""
    elsewhere = () if is_loopback else (socket.gethostname(), socket.getfqdn())
    return frozenset(name.lower() for name in ("localhost", host, *elsewhere))


class Guard:
    """Wraps an application and checks every request before it."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to what is refused, pass on the rest, and add the headers to both."""
        assert scope["type"] == "http", "the server only handles HTTP"

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
        """Return a response if the request goes no further; raise a `Refusal` if it is not allowed."""
        self._check_host(request)
        if request.method not in ("GET", "HEAD"):
            why = "the server is read-only."
            raise Refusal(405, f"{request.method} is not allowed.", why=why, fix="use GET.")
        if self._policy.token is None:
            return None
        tokens = request.query_params.getlist("token")
        if tokens and self._policy.accepts(tokens[-1]):
            return self._accept_token(request, tokens[-1])
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._policy.accepts(given.strip()):
            return None
        if self._policy.accepts(request.cookies.get(self._policy.cookie, "")):
            return None
        raise Refusal(
            401,
            "This server requires the token that it printed at startup.",
            why="the token that was sent is wrong." if tokens or given else "none was sent.",
            fix="open the URL that it printed, or send 'Authorization: Bearer TOKEN'.",
        )

    def _accept_token(self, request: Request, token: str) -> Response:
        """Move the token from the URL to a cookie: URLs are shown, logged and shared."""
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        path = request.scope.get("raw_path", b"/").decode("ascii", errors="replace")
        path = "/" + path.lstrip("/")  # two leading slashes would mean another host
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, status_code=303)
        answer.set_cookie(self._policy.cookie, token, httponly=True, samesite="lax", path="/")
        answer.headers["cache-control"] = "no-store"
        return answer

    def _check_host(self, request: Request) -> None:
        given = request.headers.getlist("host")
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            raise Refusal(400, "The Host header is missing or invalid.", fix="send a valid one, as every browser does.")
        name = (found["v6"] or found["name"]).lower().rstrip(".")
        if not self._policy.knows_host(name):
            raise Refusal(
                421,
                f"'{name}' is not a name of this server.",
                why="other websites could reach it under other names (DNS rebinding), so only known ones are valid.",
                fix="open it by its IP address, or start it with --host NAME.",
            )


def _add_headers(headers: MutableHeaders) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    is_page = headers.get("content-type", "").startswith("text/html")
    headers.setdefault("content-security-policy", PAGE_POLICY if is_page else DATA_POLICY)
