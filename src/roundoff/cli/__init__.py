"""The command line: arguments in, exit code out (see `ExitCode`)."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from roundoff.cli.project_defaults import read_project_defaults
from roundoff.cli.terminal import exit_codes, show_plainly, silence_stdout_without_reader, without_torch
from roundoff.words import join_words

COMMANDS = {
    "run": "Watch a training script and explain why when it breaks.",
    "diagnose": "Explain what went wrong in a run and what to change.",
    "report": "Write a report about a run as one HTML file.",
    "serve": "Show a directory of runs in the browser, live.",
    "runs": "List runs and show their recorded steps.",
    "mcp": "Serve runs to an agent over the Model Context Protocol.",
    "replay": "Run a saved bad step again, or export the op that failed.",
    "what-if": "Play a saved bad step with another learning rate, clipping or format.",
    "compare": "Find where a run, checkpoint or curve first differs from its reference.",
    "bisect": "Find the smallest set of layers that must stay wide, or the op that is wrong.",
    "record": "Run a training script and record what some of its steps compute.",
    "check-device": "Check every op of a training script's step on its device against the CPU and fp64.",
    "invariant": "Find the ops whose result for a sample depends on the batch that it is in.",
    "layouts": "Check that a training computes the same on many ranks as on one.",
    "plan": "Measure where precision is lost and write a recipe that trains.",
    "recipes": "List the training recipes and when to use which.",
    "formats": "Show which numbers a format can represent.",
    "train": "Train a standard model on standard data at any precision.",
    "sweep": "Train every combination of a table of recipes and settings.",
    "throughput": "Measure which workers, threads, recipe and ranks train fastest on this machine.",
    "params": "List the tensors of a model or of a checkpoint of any framework.",
    "convert": "Convert a checkpoint from one framework to another.",
    "demo": "Watch a training fail in fp16, find out why, and fix it.",
    "schema": "Print the JSON schema of what a command prints with --json.",
    "skill": "Print or install SKILL.md, for agents.",
    "docs": "Print a page of the documentation.",
    "doctor": "Check this installation and report what is missing.",
    "completion": "Let the shell complete commands and options.",
}
"""In the order of `--help`; NAME is `NAME_command` in `roundoff.cli.NAME`, with _ for -."""
GROUPS = {
    "Watch and explain": ("run", "diagnose", "report", "serve", "runs", "mcp", "replay", "what-if"),
    "Compare and search": ("compare", "bisect", "record", "check-device", "invariant", "layouts"),
    "Train at another precision": ("plan", "recipes", "formats", "train", "sweep", "throughput"),
    "Checkpoints": ("params", "convert"),
}
"""How `--help` groups the commands, the most used first; the others come last."""
NEED_TORCH = (
    *(
        "demo",
        "record",
        "run",
        "replay",
        "what-if",
        "convert",
        "train",
        "sweep",
        "throughput",
        "bisect",
        "plan",
        "check-device",
        "invariant",
        "layouts",
    ),
)
"""These always compute with torch; the others need it never, or only with some of their options."""
_RUN_SCRIPTS = ("record", "run", "check-device", "invariant")
"""The user's script prints to the same stdout, so these commands leave its encoding alone."""


_WITHOUT_DEFAULTS = ("demo",)
"""A project's pyproject.toml does not change these: they show the same everywhere."""


class LazyGroup(click.Group):
    """A click group that imports a command only when it is called, and ends as `exit_codes` says."""

    def __init__(self, table: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        if cmd_name not in self.table:
            return None
        command = _load(cmd_name)
        if cmd_name in NEED_TORCH and find_spec("torch") is None:
            command.callback = _refuse_without_torch  # its --help still works
        if cmd_name in _WITHOUT_DEFAULTS or (defaults := read_project_defaults()) is None:
            return command
        defaults.check_names({name: partial(_load, name) for name in self.table if name not in _WITHOUT_DEFAULTS})
        return defaults.apply(cmd_name, command, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, in groups, from the table alone."""
        grouped = {name for names in GROUPS.values() for name in names}
        width = max(map(len, self.table))
        for title, names in {**GROUPS, "More": [name for name in self.table if name not in grouped]}.items():
            if rows := [(f"{name:{width}}", self.table[name]) for name in names if name in self.table]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, from the table alone."""
        found = [CompletionItem(name, help=text) for name, text in self.table.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begins with, or suggest the one that was probably meant."""
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.table, n=1)
            guess = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(f"There is no command '{name}'.{guess}", ctx=ctx)
        if name not in _RUN_SCRIPTS:
            show_plainly(sys.stdout)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that escapes it becomes a message and an exit code."""
        with exit_codes():
            try:
                return super().invoke(ctx)
            except (click.NoSuchOption, click.MissingParameter) as error:
                hint = _hint(error)
                words = error.message if hint and error.message else error.format_message()
                raise click.UsageError(f"{words} {hint}".strip(), ctx=error.ctx) from error


def _load(name: str) -> click.Command:
    module = name.replace("-", "_")
    command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), f"{module}_command")
    return command


def _hint(error: click.UsageError) -> str:
    """Return what a reader who made this mistake probably wants to type."""
    called = error.ctx.command_path if error.ctx is not None else "roundoff"
    if isinstance(error, click.NoSuchOption):
        if error.ctx is None or error.ctx.allow_interspersed_args:
            return ""
        return f"Options of the script come after it: {called} train.py {error.option_name} ..."
    if not isinstance(error, click.MissingParameter) or error.param is None:
        return ""
    if error.param.name == "builder":
        return "To write one, start from what `roundoff replay RUN` prints."
    if error.param.metavar != "RUN":
        return ""
    found = max(Path("runs").glob("*/run.json"), key=lambda path: path.stat().st_mtime, default=None)
    return f"The newest run here: {called} {found.parent}" if found is not None else "There is none in runs/ here."


def _refuse_without_torch(**options: Any) -> NoReturn:
    raise without_torch(f"`{click.get_current_context().command_path}`")


command_line = LazyGroup(
    COMMANDS,
    name="roundoff",
    help="Train neural networks at any numeric precision, and find out why when it goes wrong.\n\n"
    "Exit codes: 0 nothing found, 1 something found, 2 could not look. `run` and `record` exit with the script's own "
    f"code.\n\nWithout torch everything works except {join_words(NEED_TORCH)}, "
    "and what looks at the values of tensors.",
    epilog="Example: roundoff run train.py",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="roundoff", message="%(prog)s %(version)s")(command_line)


def main() -> None:
    """Run the command line named by `sys.argv` and leave with its exit code."""
    try:
        command_line(prog_name="roundoff")
    finally:
        silence_stdout_without_reader()
