"""Taking a port, naming it, and ending quietly whatever is going on."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundoff.errors import ServeError
from roundoff.serve import server
from roundoff.serve.server import address_of, choose_token, is_loopback, listen
from tests.serve.serving import Server, serving

PATIENCE_SECONDS = 60.0
SLOW_SERVER = """
import asyncio
from roundoff.serve.server import listen, serve_until_stopped

async def app(scope, receive, send):
    print("requested", flush=True)
    await asyncio.sleep(1000)

listening = listen("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
serve_until_stopped(app, listening)
print("ended", flush=True)
"""


def test_who_ends_a_server_need_not_wait_for_its_answers_nor_read_about_them() -> None:
    command = [sys.executable, "-c", SLOW_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
            connection.request("GET", "/")
            assert process.stdout.readline() == "requested\n"
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=PATIENCE_SECONDS)
            connection.close()
            assert (process.returncode, rest, errors) == (0, "ended\n", "")
        finally:
            process.kill()


def test_the_site_is_there_before_torch_is_loaded() -> None:
    code = "import sys, roundoff.serve.app; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert answer.stdout == "False\n"


@pytest.mark.parametrize(
    ("host", "expected", "is_local"),
    [("127.0.0.1", "127.0.0.1", True), ("localhost", "", True), ("0.0.0.0", socket.gethostname(), False)],
)
def test_the_address_is_what_one_opens(host: str, expected: str, is_local: bool) -> None:
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        assert port > 0
        assert is_loopback(listening) is is_local
        assert address_of(listening) == f"http://{expected}:{port}/" or not expected


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_an_ipv6_address_is_in_brackets() -> None:
    try:
        listening = listen("::1", 0)
    except ServeError:
        pytest.skip("this machine has no address of IPv6")
    with listening:
        assert address_of(listening) == f"http://[::1]:{listening.getsockname()[1]}/"
        assert is_loopback(listening)


def test_a_token_is_made_where_one_is_needed_and_each_time_another() -> None:
    assert choose_token(None, is_needed=False) is None
    made = {choose_token(None, is_needed=True) for _ in range(3)}
    assert len(made) == 3
    assert all(token is not None and len(token) == 32 for token in made)
    assert choose_token("my-own-token", is_needed=False) == "my-own-token"


def talk(port: int, *, first: bytes, then: bytes, pause: float) -> tuple[bytes, float]:
    """Send something, then a byte at a time, until the server closes; return what it answered and how long it took."""
    began = time.monotonic()
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=pause) as connection:
        connection.sendall(first)
        while time.monotonic() - began < PATIENCE_SECONDS:
            try:
                received = connection.recv(65536)
                answer += received
                if not received:
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
            try:
                connection.sendall(then)
            except OSError:
                break
    return answer, time.monotonic() - began


@pytest.fixture
def impatient(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1.0)
    with serving(runs_folder) as running:
        yield running


@pytest.fixture
def runs_folder(tmp_path: Path) -> Path:
    return tmp_path


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(impatient: Server) -> None:
    _, seconds = talk(impatient.port, first=b"GET / HTTP/1.1\r\nHost: localhost\r\n", then=b"x", pause=0.1)
    assert seconds < 20


def test_a_connection_without_a_request_is_closed(impatient: Server) -> None:
    _, seconds = talk(impatient.port, first=b"", then=b"", pause=0.1)
    assert seconds < 20


def test_a_second_head_has_no_more_time_than_the_first(impatient: Server) -> None:
    whole = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer, seconds = talk(impatient.port, first=whole + b"GET / HTTP/1.1\r\n", then=b"x", pause=0.1)
    assert answer.startswith(b"HTTP/1.1 ")
    assert seconds < 20


def test_a_head_that_is_too_long_is_refused(impatient: Server) -> None:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000
    answer, seconds = talk(impatient.port, first=head, then=b"x", pause=0.1)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert seconds < 20
