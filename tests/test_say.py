"""What roundoff says: one line on stderr, or wherever the logger `roundoff` sends it."""

from __future__ import annotations

import io
import logging
import logging.config
from collections.abc import Iterator

import pytest

from roundoff.progress import say


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("roundoff")
    yield found
    found.handlers.clear()
    found.setLevel(logging.NOTSET)
    found.disabled = False


def test_it_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("stopped recording")
    assert capsys.readouterr() == ("", "roundoff: stopped recording\n")


@pytest.mark.usefixtures("logger")
@pytest.mark.parametrize("level", [logging.DEBUG, logging.CRITICAL])
def test_the_root_logger_neither_repeats_nor_swallows_it(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    before, handler = root.level, logging.StreamHandler(stream)
    root.addHandler(handler)
    root.setLevel(level)
    try:
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
        say("stopped recording")
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    assert capsys.readouterr().err == "roundoff: stopped recording\n"
    assert stream.getvalue() == ""


def test_a_handler_of_the_logger_gets_it_instead(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    say("100 % of the disk is used")
    assert stream.getvalue() == "roundoff WARNING 100 % of the disk is used\n"
    assert capsys.readouterr().err == ""


def test_a_higher_level_silences_it(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logger.setLevel(logging.ERROR)
    say("stopped recording")
    assert capsys.readouterr().err == ""
