"""Who may ask a server, and what a browser may do with its answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from roundoff.serve.guard import AccessPolicy, host_names
from tests.report.sample_runs import write_metrics_run
from tests.serve.serving import PATIENCE_SECONDS, Server, serving

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for a token."""
    folder = tmp_path_factory.mktemp("locked")
    write_metrics_run(folder / "run", [1.0])
    with serving(folder, token=TOKEN, is_loopback=False) as server:
        yield server


@pytest.mark.parametrize("path", ["/", "/api/runs", "/runs/run", "/runs/run/page", "/nowhere", "/favicon.ico"])
def test_without_the_token_nothing_is_answered(locked: Server, path: str) -> None:
    answer = locked.ask(path)
    assert answer.status == 401
    assert "requires the token" in answer.text
    assert TOKEN not in answer.text


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "tökén"])
def test_a_wrong_token_is_refused_wherever_it_is(locked: Server, wrong: str) -> None:
    assert locked.ask(f"/api/runs?token={quote(wrong)}").status == 401
    if wrong.isascii():
        assert locked.ask("/api/runs", authorization=f"Bearer {wrong}").status == 401
        assert locked.ask("/api/runs", cookie=f"roundoff-token={wrong}").status == 401


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(locked: Server) -> None:
    answer = locked.ask(f"/runs/run?token={TOKEN}&x=1%262")
    assert (answer.status, answer.headers["location"]) == (303, "/runs/run?x=1%262")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert answer.headers["cache-control"] == "no-store"
    assert locked.ask("/runs/run", cookie=cookie.partition(";")[0]).status == 200


def test_a_token_in_the_address_leads_to_no_other_host(locked: Server) -> None:
    assert locked.ask(f"//evil.example/x?token={TOKEN}").headers["location"] == "/evil.example/x"


def test_a_program_sends_the_token_as_bearer(locked: Server) -> None:
    assert locked.ask("/api/runs", authorization=f"Bearer {TOKEN}").json["runs"][0]["name"] == "run"
    assert locked.ask("/api/runs", authorization=f"Basic {TOKEN}").status == 401


def test_a_server_without_a_token_takes_none_for_one() -> None:
    assert not AccessPolicy(names=frozenset(), is_loopback=True).accepts("")


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1", "127.0.0.1:7007", "[::1]:80", "LOCALHOST."])
def test_names_of_this_machine_are_answered(server: Server, host: str) -> None:
    assert server.ask("/api/runs", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.168.1.5", "10.0.0.1:80", "[::2]"])
def test_other_names_are_refused_so_that_no_page_elsewhere_can_lead_a_browser_here(server: Server, host: str) -> None:
    answer = server.ask("/api/runs", Host=host)
    assert answer.status == 421
    assert "is not a name of this server" in answer.json["error"]


@pytest.mark.parametrize("host", ["", "a b", "localhost:port", "localhost/x", "user@localhost", "[::1", ":80"])
def test_a_host_that_makes_no_sense_is_refused(server: Server, host: str) -> None:
    assert server.ask("/api/runs", Host=host).status == 400


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(64).startswith(b"HTTP/1.1 400")


def test_where_every_network_may_ask_addresses_and_our_own_name_are_known() -> None:
    policy = AccessPolicy(names=host_names("Box.example", is_loopback=False), is_loopback=False)
    for name in ("192.168.1.5", "::2", "box.example", "localhost", socket.gethostname().lower()):
        assert policy.knows_host(name)
    assert not policy.knows_host("evil.example")
    assert host_names("127.0.0.1", is_loopback=True) == {"localhost", "127.0.0.1"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_but_get_and_head_is_answered(server: Server, method: str) -> None:
    for path in ("/", "/api/runs", "/runs/broken"):
        answer = server.ask(path, method=method)
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"


def test_head_tells_what_get_would_send(server: Server) -> None:
    head, get = server.ask("/api/runs/broken", method="HEAD"), server.ask("/api/runs/broken")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("path", ["/", "/runs/broken", "/runs/broken/page", "/api/runs", "/nowhere", "/runs/damaged"])
def test_every_answer_tells_the_browser_what_not_to_do(server: Server, path: str) -> None:
    headers = server.ask(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'self'" in headers["content-security-policy"] or path.startswith("/api/")
    assert "server" not in headers
    assert not any(name.startswith("access-control") for name in headers)


def test_pages_run_no_script_but_ours_and_ask_only_their_server(server: Server) -> None:
    for path in ("/", "/runs/broken", "/runs/tensors/tensors"):
        page = server.ask(path).text
        policy = page.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
        assert policy.startswith("default-src &#x27;none&#x27;")
        assert "unsafe" not in policy
        assert "connect-src &#x27;self&#x27;" in policy
