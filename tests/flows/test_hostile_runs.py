"""Run folders that were tampered with: no command hangs, obeys escapes, writes elsewhere or fails otherwise."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.errors import RoundoffError
from tests.fuzz_readers import write_watched_run

ESCAPE = "\x1b[2Jfine\x07\u202e"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    write_watched_run(folder)
    return folder


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "run")


@pytest.fixture(autouse=True)
def hanging_is_a_failure() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError("the command hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def roundoff(*words: str | Path) -> Result:
    return CliRunner().invoke(command_line, [str(word) for word in words])


def commands(run: Path) -> list[Result]:
    """Run every command that reads a run."""
    return [
        roundoff("diagnose", run),
        roundoff("report", run, "-o", run.parent / "page.html"),
        roundoff("runs", run.parent),
        roundoff("runs", "show", run, "--step", "0"),
        roundoff("compare", run, run),
        roundoff("replay", run),
    ]


FILES = [
    "run.json", "metrics-rank0.jsonl", "calls-rank0.jsonl", "structure-rank0.jsonl", "inputs-rank0.jsonl",
    "flight-rank0.bin", "findings.json", "crash-rank0.txt", "ending-rank0.json", "events/rank0-part-00000.parquet",
    "replay/step2/tape-rank0.json", "replay/step2/batch-rank0.safetensors", "replay/step2/origin-rank0.json",
]  # fmt: skip


KINDS = [*(("pipe", name) for name in FILES), *(("device", name) for name in FILES[:2]), ("folder", FILES[9])]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_what_is_not_a_regular_file_hangs_no_command(run: Path, name: str, kind: str):
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    {
        "pipe": lambda: os.mkfifo(run / name),
        "device": lambda: (run / name).symlink_to("/dev/zero"),
        "folder": (run / name).mkdir,
    }[kind]()
    for result in commands(run):
        assert result.exception is None or isinstance(result.exception, SystemExit | RoundoffError), result.exception
        assert "Traceback" not in result.output


def test_no_command_writes_through_a_link(run: Path, tmp_path: Path):
    users = tmp_path / "users-file"
    users.write_text("<!doctype html> precious")
    for name in ("findings.json", "findings.json.tmp", "report.html", "report.html.tmp"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(users)
    for words in (["diagnose", run], ["report", run]):
        assert roundoff(*words).exit_code in (0, 1), roundoff(*words).output
    assert users.read_text() == "<!doctype html> precious"
    assert not (run / "report.html").is_symlink()
    assert [(run / name).stat().st_mode & 0o777 for name in ("report.html", "findings.json")] == [0o600, 0o600]


def test_everything_in_a_run_is_private(pristine: Path):
    modes = {path.stat().st_mode & 0o777 for path in [pristine, *pristine.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in pristine.rglob("*") if path.is_file()} == {0o600}


def test_escapes_in_a_run_are_shown_and_not_sent(run: Path):
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "name": ESCAPE, "recipe": ESCAPE, "notes": [ESCAPE]}))
    roundoff("diagnose", run)
    findings = json.loads((run / "findings.json").read_text())
    for finding in findings["findings"]:
        finding |= {"title": ESCAPE, "why": ESCAPE, "site": ESCAPE}
    (run / "findings.json").write_text(json.dumps(findings))
    (run / "metrics-rank0.jsonl").write_text('{"step": "' + ESCAPE.encode("unicode_escape").decode() + '"}\n')
    for result in commands(run):
        assert not {"\x1b", "\x07", "\u202e"} & set(result.output), result.output


def test_escapes_in_names_of_files_are_shown_and_not_sent(tmp_path: Path):
    for words in (["diagnose", tmp_path / ESCAPE], ["params", tmp_path / ESCAPE], ["compare", ESCAPE, ESCAPE]):
        result = roundoff(*words)
        assert result.exit_code == 2
        assert not {"\x1b", "\x07", "\u202e"} & set(result.output)
