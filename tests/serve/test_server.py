"""Taking a port, naming it, and ending quietly whatever is going on."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys

import pytest

from roundoff.errors import ServeError
from roundoff.serve.server import address_of, choose_token, is_loopback, listen

PATIENCE_SECONDS = 60.0
SLOW_SERVER = """
import asyncio
from roundoff.serve.server import listen, serve_until_stopped

async def app(scope, receive, send):
    print("asked", flush=True)
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
            assert process.stdout.readline() == "asked\n"
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
def test_an_address_of_ipv6_stands_in_brackets() -> None:
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
