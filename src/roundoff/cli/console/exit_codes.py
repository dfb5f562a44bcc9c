"""How a command ends: what escapes it becomes a message and an exit code."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
from click.exceptions import Exit

from roundoff.errors import RoundoffError

COULD_NOT_LOOK = 2
INTERRUPTED = 130
READER_LEFT = 141
"""128 + SIGPIPE, as a shell reports a program whose reader closed the pipe."""


@contextmanager
def exit_codes() -> Iterator[None]:
    """Give every way a command can fail its exit code.

    Our own errors and click's are shown without a traceback and end with 2; an interrupt ends with 130 in silence, and
    so does, with 141, writing to a pipe whose reader has left. Anything else is a bug and keeps its traceback.
    """
    try:
        yield
        sys.stdout.flush()
    except RoundoffError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        raise Exit(COULD_NOT_LOOK) from error
    except click.ClickException as error:
        error.show()
        raise Exit(COULD_NOT_LOOK) from error
    except (KeyboardInterrupt, click.Abort):
        raise Exit(INTERRUPTED) from None
    except BrokenPipeError as error:
        if not _reader_has_left():
            # click takes every broken pipe for that of stdout and hushes it up.
            raise RuntimeError("a pipe broke that is not the output") from error
        silence_stdout_without_reader()
        raise Exit(READER_LEFT) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        click.echo("The output cannot be written: no space is left.", err=True)
        _write_nowhere()  # what is left of it would be complained about once more at the end
        raise Exit(COULD_NOT_LOOK) from error


def silence_stdout_without_reader() -> None:
    """Keep Python from complaining at its end about output that nobody will read."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        return
    _write_nowhere()


def _write_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_left() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in poll.poll(0))
