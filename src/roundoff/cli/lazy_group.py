"""A group of commands that imports a command only when it is called."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from roundoff.cli.console.exit_codes import exit_codes
from roundoff.cli.console.screen import show_plainly


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """Where a command lives, and the line that describes it."""

    module: str
    attribute: str
    help: str
    runs_scripts: bool = False
    """Whether scripts of others print to the same stdout, which is then left as they would find it."""

    def load(self) -> click.Command:
        """Import the command."""
        command = getattr(importlib.import_module(self.module), self.attribute)
        assert isinstance(command, click.Command), f"{self.module}.{self.attribute} is not a command"
        return command


class LazyGroup(click.Group):
    """A click group that imports a command only when it is called, and ends as `exit_codes` says."""

    def __init__(self, table: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(**options)
        self.table = {name: command for name, command in table.items() if importlib.util.find_spec(command.module)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        entry = self.table.get(cmd_name)
        return entry.load() if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begins with, or say which one was probably meant."""
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            raise click.UsageError(f"There is no command '{name}'.{_did_you_mean(name, self.table)}", ctx=ctx)
        if name in self.table and not self.table[name].runs_scripts:
            show_plainly(sys.stdout)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what escapes it becomes a message and an exit code."""
        with exit_codes():
            return super().invoke(ctx)


def _did_you_mean(name: str, known: Mapping[str, LazyCommand]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
