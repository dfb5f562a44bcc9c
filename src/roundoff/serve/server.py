"""Opens a port and serves until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import secrets
import socket
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from roundoff.errors import ServeError

MIN_TOKEN_LENGTH = 8
REQUEST_SECONDS = 20.0
"""How long a connection may take to send a request: from its start, or from the end of the last response."""
MAX_HEAD_BYTES = 16 * 2**10
MAX_CONNECTIONS = 256
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise a `ServeError` if that is not possible."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServeError.explain(
            f"Unknown host '{host}'.", why=f"{error}.", fix="--host 127.0.0.1, or 0.0.0.0 for all networks."
        ) from error
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed can be used again
    try:
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise _bind_error(host, port, error) from error
    return listening


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can connect."""
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def address_of(listening: socket.socket) -> str:
    """Return the URL for a browser; for a server on all networks, with this machine's name."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    name = socket.gethostname() if address.is_unspecified else f"[{address}]" if address.version == 6 else str(address)
    return f"http://{name}:{port}/"


def choose_token(given: str | None, *, is_needed: bool) -> str | None:
    """Return the required token: the given one, a new one if one is needed, or None."""
    if given is None:
        return secrets.token_urlsafe(24) if is_needed else None
    if len(given) < MIN_TOKEN_LENGTH or not _TOKEN.fullmatch(given):
        raise ServeError.explain(
            "Invalid token.",
            why=f"it must have {MIN_TOKEN_LENGTH} or more characters, only letters, digits and any of ._~-.",
            fix="leave it out to generate one, or: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return given


def serve_until_stopped(app: ASGIApp, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    with suppress(KeyboardInterrupt):
        make_server(app).run(sockets=[listening])


class QuietServer(uvicorn.Server):
    """A server that logs no errors about open requests once it is stopped."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


class ImpatientProtocol(H11Protocol):
    """HTTP that closes a connection which sends no whole request in time: slow ones must not use up the server."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first request its time."""
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        """Take what came; the time ends only with a whole head."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._cancel_deadline()

    def on_response_complete(self) -> None:
        """Give the next request its time."""
        self._start_deadline()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return a server that logs only warnings."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http=ImpatientProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=MAX_CONNECTIONS,
        loop="asyncio",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    return QuietServer(config)


def _bind_error(host: str, port: int, error: OSError) -> ServeError:
    if error.errno == errno.EADDRINUSE:
        fix = f"--port {port + 1 if port < 65535 else 0}, or --port 0 for any free port."
        return ServeError.explain(f"Port {port} is in use.", why="another program is using it.", fix=fix)
    if error.errno == errno.EACCES:
        return ServeError.explain(f"Port {port} must not be used.", why=f"{error.strerror}.", fix="--port 7007")
    fix = "--host 127.0.0.1, or 0.0.0.0 for all networks."
    return ServeError.explain(f"'{host}' is not an address to listen on.", why=f"{error.strerror}.", fix=fix)
