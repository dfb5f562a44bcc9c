"""What a command prints and how it ends: the characters a terminal can show, exit codes, and errors that escape."""

from __future__ import annotations

import atexit
import codecs
import errno
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from importlib.util import find_spec
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.exceptions import Exit

from roundoff.console import can_draw, escape_controls
from roundoff.errors import RoundoffError, UsageError
from roundoff.progress import say, waiting
from roundoff.words import join_words

if TYPE_CHECKING:
    from roundoff.runs import Run

_PLAIN = str.maketrans("─…▁▂▃▄▅▆▇█━", "-~_.,:-=+#-")
"""ASCII replacements for the characters that curves and rules are drawn with."""
_ERRORS = "roundoff.plain"


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text; control characters, which names from files may hold, are shown and not sent to the terminal."""
    click.echo(escape_controls(str(text)), err=err, nl=nl)


def warn(text: str) -> None:
    """Print a line to stderr, or where the logger `roundoff` sends it."""
    say(escape_controls(text))


def show_plainly(stream: TextIO) -> None:
    """Let a stream that does not know a character show a plain one in its place, where it would raise an error."""
    if isinstance(stream, TextIOWrapper) and not can_draw(stream):
        codecs.register_error(_ERRORS, _replace_unknown)
        stream.reconfigure(errors=_ERRORS)


def _replace_unknown(error: UnicodeError) -> tuple[str, int]:
    """Return what to write for characters that an encoding does not know, and where to continue."""
    assert isinstance(error, UnicodeEncodeError)
    unknown = error.object[error.start : error.end].translate(_PLAIN)
    return unknown.encode("ascii", "replace").decode("ascii"), error.end


def log_to(run: Run, loggers: Sequence[str]) -> None:
    """Send a run to loggers; one that fails is a line on stderr."""
    if loggers:
        from roundoff.report.loggers.logged_run import log_run

        with waiting(f"logging to {join_words(loggers)}"):
            failed = log_run(run, loggers)
        for line in failed:
            warn(line)


_ENDING_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class ExitCode(IntEnum):
    """What a command that answers a question ends with; docs/exit-codes.md lists them.

    `run` and `record` end with the script's own code instead, except for what `--fail-on` and `--strict` request.
    """

    CLEAN = 0
    """Nothing was found, and everything was checked."""
    FOUND = 1
    """Something was found: an error or a warning, a difference, a training that is not good."""
    COULD_NOT_LOOK = 2
    """The question has no answer: wrong usage, an unreadable file, nothing recorded, a check that failed."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT, as a shell reports it."""
    READER_LEFT = 141
    """The reader of the output closed the pipe: 128 + SIGPIPE, as a shell reports it."""


def without_torch(what: str) -> UsageError:
    """Return the error of something that needs torch where there is none."""
    return UsageError(f"{what} needs torch, which is not installed here: pip install torch")


def exit_code_of(is_found: bool) -> ExitCode:
    """Return the exit code of a command that could answer its question."""
    return ExitCode.FOUND if is_found else ExitCode.CLEAN


@contextmanager
def exit_codes() -> Iterator[None]:
    """Give every way a command can fail its exit code.

    Errors of roundoff and of click, and torch where it is missing, are printed without a traceback and end with 2. An
    interrupt ends with 130, and writing to a closed pipe with 141, both without a message. Anything else is a bug and
    keeps its traceback.
    """
    try:
        yield
        sys.stdout.flush()
    except RoundoffError as error:
        echo(f"{type(error).__name__}: {error}", err=True)
        raise Exit(ExitCode.COULD_NOT_LOOK) from error
    except click.ClickException as error:
        error.show()
        raise Exit(ExitCode.COULD_NOT_LOOK) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch" or find_spec("torch") is not None:
            raise
        echo(f"UsageError: {without_torch('This')}", err=True)
        raise Exit(ExitCode.COULD_NOT_LOOK) from error
    except (KeyboardInterrupt, click.Abort):
        raise Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError as error:
        if not _stdout_reader_left():
            # click assumes that every broken pipe is stdout's and says nothing about it.
            raise RuntimeError("a pipe other than stdout broke") from error
        silence_stdout_without_reader()
        raise Exit(ExitCode.READER_LEFT) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        echo("The output cannot be written: no space left on the device.", err=True)
        _redirect_stdout_to_null()  # flushing the rest at exit would raise the same error again
        raise Exit(ExitCode.COULD_NOT_LOOK) from error


class ScriptEnding:
    """Lets this process end as Python ends it when a script is interrupted: by SIGINT, after all exit handlers.

    To be made before the script runs: exit handlers run in reverse order.
    """

    def __init__(self) -> None:
        self._is_interrupted = False
        self._process = os.getpid()
        atexit.register(self._die)

    def note(self, error: BaseException) -> None:
        """Note an exception that the script did not catch."""
        self._is_interrupted = isinstance(error, KeyboardInterrupt)

    def _die(self) -> None:
        if self._is_interrupted and os.getpid() == self._process:
            from roundoff.watch.process.ipc import die_by

            die_by(signal.SIGINT)


class DiagnosisSignals:
    """Lets a signal that arrives after the script has ended end our diagnosis, by KeyboardInterrupt; once.

    The handlers of the script are put back when the diagnosis is over. A signal that is ignored stays so.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def take(self, *, of_several_ranks: bool) -> None:
        """Take the signals over from the script.

        A launcher sends SIGTERM to all ranks when one of them has failed, and waits: of several ranks, the one that
        diagnoses finishes that, since its verdict says why.
        """
        for number in (getattr(signal, name) for name in _ENDING_SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                is_ignored = of_several_ranks and number == signal.SIGTERM
                handler = signal.SIG_IGN if is_ignored else signal.default_int_handler
                self._before[number] = signal.signal(number, handler)

    def ignore(self) -> None:
        """Ignore further signals: the process is about to end."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def give_back(self) -> None:
        """Put the handlers of the script back."""
        for number, handler in self._before.items():
            if handler is not None:  # set by native code, which Python cannot do
                signal.signal(number, handler)


def silence_stdout_without_reader() -> None:
    """Keep Python from complaining at exit about output that no one reads."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        return
    _redirect_stdout_to_null()


def _redirect_stdout_to_null() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stdout_reader_left() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in poll.poll(0))
