"""What somebody who waits for a plan sees."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from roundoff.cli.screen import is_live

if TYPE_CHECKING:
    from rich.status import Status


class PlanProgress:
    """A line for everything that has ended, under it on a terminal a sign of life; after an interrupt, how to go on."""

    def __init__(self, *, again: str) -> None:
        self._again = again
        self._status = _status() if is_live() else None

    def tell(self, line: str) -> None:
        """Show one line."""
        if self._status is None:
            click.echo(line, err=True)
        else:
            self._status.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            click.echo(f"every training that has ended is kept. To go on: {self._again}", err=True)


def _status() -> Status:
    from rich.console import Console

    return Console(stderr=True).status("planning")
