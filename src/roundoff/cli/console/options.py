"""Options that several commands share, and quantities as people type them: `2%`, `500MB`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Settings = TypeVar("Settings")
Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
_MAX_SEED = 2**63 - 1
_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def fills(settings: Callable[..., Settings]) -> Callable[[Callable[[Settings], None]], Callable[..., None]]:
    """Pass a command all of its options as one value, which has a field for each of them.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Greeting:
    ...     name: str
    >>> @fills(Greeting)
    ... def greet(greeting: Greeting) -> None:
    ...     print(f"hello {greeting.name}")
    >>> greet(name="you")
    hello you
    """

    def decorate(command: Callable[[Settings], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**options: Any) -> None:
            command(settings(**options))

        return call

    return decorate


def json_option(text: str = "Print the result as JSON.") -> Callable[[Command], Command]:
    """Declare `--json`, which is passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def exit_zero_option(text: str = "Exit with 0 whatever was found.") -> Callable[[Command], Command]:
    """Declare `--exit-zero`."""
    return click.option("--exit-zero", is_flag=True, help=text)


def name_option(what: str, *, default: str) -> Callable[[Command], Command]:
    """Declare `--name`, the name of the folder that a command creates."""
    return click.option("--name", help=f"Name of the {what}.  [default: {default}]")


def runs_option(text: str = "Parent directory of the run.") -> Callable[[Command], Command]:
    """Declare `--runs`, the directory in which a command creates its folder."""
    return click.option("--runs", type=PATH, default="runs", show_default=True, metavar="DIR", help=text)


def seed_option(
    text: str = "Seed of every random generator, set before the script starts.",
) -> Callable[[Command], Command]:
    """Declare `--seed` of a command that runs a script."""
    return click.option("--seed", type=click.IntRange(0, _MAX_SEED), help=text)


def repeatable_options(command: Command) -> Command:
    """Declare what makes a script repeatable: `--seed`, `--deterministic` and `--repeat-batch`."""
    for option in (
        click.option("--repeat-batch", is_flag=True, help="Do not shuffle, and train on the first batch every step."),
        click.option("--deterministic", is_flag=True, help="Use deterministic kernels of torch."),
        seed_option(),
    ):
        command = option(command)
    return command


def script_arguments(metavar: str = "SCRIPT [ARGS]...") -> Callable[[Command], Command]:
    """Declare `-m` and the script with its arguments, which are passed as `is_module` and `words`."""

    def declare(command: Command) -> Command:
        command = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar=metavar)(command)
        return click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")(command)

    return declare


class Share(click.ParamType[float]):
    """A part of a whole, `2%` or `0.02`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"'{value}' is not a share between 0 and 1, such as 2% or 0.02.", param, ctx)
        return share


class Bytes(click.ParamType[int]):
    """An amount of memory, `500MB` or `2GB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", str(value).strip(), re.IGNORECASE)
        unit = match[2].upper().replace("I", "") if match else "?"
        unit = unit if not unit or unit.endswith("B") else f"{unit}B"
        if match is None or unit not in _UNITS:
            self.fail(f"'{value}' is not an amount of memory such as 500MB or 2GB.", param, ctx)
        return int(float(match[1]) * _UNITS[unit])
