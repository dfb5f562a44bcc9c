"""`roundoff serve` as a process: what it prints, how it ends, and when it does not begin."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundoff.cli import command_line
from tests.report.sample_runs import write_metrics_run

PATIENCE_SECONDS = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_metrics_run(tmp_path / "runs" / "one", [2.0, 1.0])
    return tmp_path / "runs"


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command and yield it with the line it prints; it is ended if the test has not."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("ROUNDOFF_TOKEN", None)
    command = [sys.executable, "-m", "roundoff", "serve", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(command_line, ["serve", *arguments])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_prints_the_address_answers_there_and_ends_quietly_with_an_interrupt(folder: Path) -> None:
    with started(str(folder), "--port", "0") as (process, line):
        address, words = line.split("   ")
        assert words == f"1 run in {folder}; Ctrl-C ends it\n"
        assert f"<h1>Runs in {folder}</h1>" in fetch(address)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, rest, errors) == (0, "", "")


def test_tells_a_machine_where_it_is_and_asks_strangers_for_a_token(folder: Path) -> None:
    with started(str(folder), "--port", "0", "--host", "0.0.0.0", "--json") as (_, line):
        reported = json.loads(line)
        assert (reported["folder"], reported["num_runs"]) == (str(folder), 1)
        assert reported["address"].endswith(f":{reported['port']}/?token={reported['token']}")
        assert len(reported["token"]) >= 32
        here = f"http://127.0.0.1:{reported['port']}/api/runs"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(here)
        request = urllib.request.Request(here, headers={"Authorization": f"Bearer {reported['token']}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            assert json.load(answer)["runs"][0]["name"] == "one"


def test_a_port_that_is_taken_is_reported_with_another(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refused(str(folder), "--port", str(port)) == (
            f"ServeError: Port {port} is in use.\n"
            "  why: another program is using it.\n"
            f"  fix: --port {port + 1 if port < 65535 else 0}, or --port 0 for any free port.\n"
        )


def test_a_host_that_is_not_ours_is_reported(folder: Path) -> None:
    assert "Unknown host 'nowhere.invalid'." in refused(str(folder), "--host", "nowhere.invalid")
    assert "'192.0.2.1' is not an address to listen on." in refused(str(folder), "--host", "192.0.2.1")


@pytest.mark.parametrize("token", ["short", "with a space in it", "", "ümlaut-ümlaut"])
def test_a_token_that_cannot_be_used_is_refused(folder: Path, token: str) -> None:
    assert "Invalid token." in refused(str(folder), "--port", "0", "--token", token)


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert f"'{tmp_path / 'none'}' does not exist." in refused(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    assert f"'{tmp_path / 'file'}' is no folder." in refused(str(tmp_path / "file"))


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_it_says_what_to_install(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(str(folder)) == (
        f"ServeError: {package} is not installed.\n"
        "  why: roundoff serve needs it.\n"
        "  fix: pip install 'roundoff[serve]'\n"
    )
