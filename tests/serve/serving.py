"""A real server in a thread, and a client that sends any request, however wrong."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundoff.serve.app import App, PageCache
from roundoff.serve.guard import AccessPolicy
from roundoff.serve.runs_folder import OpenedRun, RunsFolder
from roundoff.serve.server import listen, make_server

PATIENCE_SECONDS = 60.0
MakePage = Callable[[OpenedRun, OpenedRun | None], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        """Send a request as it is written here; `_` in the names of headers is `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="Host" in named, skip_accept_encoding=True)
            for name, value in named.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(status=answer.status, headers=found, body=answer.read())
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return what an address answers, which must be fine."""
        answer = self.ask(path)
        assert answer.status == 200, answer.text
        return answer.json


@contextmanager
def serving(
    folder: Path, *, token: str | None = None, is_loopback: bool = True, make: MakePage | None = None
) -> Iterator[Server]:
    """Serve a folder while the block lasts; `make` makes the pages of runs, if others than ours are wanted."""
    listening = listen("127.0.0.1", 0)
    app = App(RunsFolder(folder), poll_seconds=0.2)
    if make is not None:
        app.pages = PageCache(make=make)
    policy = AccessPolicy(names=frozenset({"localhost"}), is_loopback=is_loopback, token=token)
    server = make_server(app.asgi(policy))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    try:
        yield Server(port=listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        app.pages.close()
        listening.close()
        assert not thread.is_alive()
