"""A line on stderr where the training has to wait."""

from __future__ import annotations

import contextlib
import io
import threading
import time

import pytest

from roundoff.progress import announcing


def spend_cpu(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        time.sleep(0)


def test_a_long_wait_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    with announcing("recording step 0", after_seconds=0.02):
        spend_cpu(0.6)
    assert capsys.readouterr().err == "roundoff: recording step 0 ...\n"


def test_a_short_wait_is_not_announced_and_leaves_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with announcing("recording step 0"):
        pass
    assert capsys.readouterr().err == ""
    assert threading.active_count() == before


def test_what_the_block_redirects_does_not_hide_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    with announcing("diagnosing", after_seconds=0.02), contextlib.redirect_stderr(io.StringIO()):
        spend_cpu(0.6)
    assert "roundoff: diagnosing" in capsys.readouterr().err
