"""Options that several commands share, and quantities as people type them: `2%`, `500MB`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

if TYPE_CHECKING:
    from roundoff.record.event_selection import EventSelection
    from roundoff.record.script import Script

Settings = TypeVar("Settings")
Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
_MAX_SEED = 2**63 - 1
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
"""The power of 1000, or of 1024 in KiB, that each letter stands for."""


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


def declare(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Declare several options, which the help lists in this order."""
    return lambda command: functools.reduce(lambda declared, option: option(declared), reversed(options), command)


def json_option(text: str = "Print the result as JSON.") -> Callable[[Command], Command]:
    """Declare `--json`, which is passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def exit_zero_option(command: Command) -> Command:
    """Declare `--exit-zero`."""
    return click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever was found.")(command)


def name_option(what: str, *, default: str) -> Callable[[Command], Command]:
    """Declare `--name`, the name of the folder that a command creates."""
    return click.option("--name", help=f"Name of the {what}.  [default: {default}]")


def runs_option(text: str = "Parent directory of the run.") -> Callable[[Command], Command]:
    """Declare `--runs`, the directory in which a command creates its folder."""
    return click.option("--runs", type=PATH, default="runs", show_default=True, metavar="DIR", help=text)


def no_data_option(command: Command) -> Command:
    """Declare --no-data."""
    return click.option(
        "--no-data",
        is_flag=True,
        help="Store no samples, batches or tensors, not even of a bad step; it cannot be replayed later.",
    )(command)


def log_to_option(command: Command) -> Command:
    """Declare --log-to."""
    return click.option(
        "--log-to",
        metavar="NAMES",
        callback=_read_loggers,
        help="Also send curves, findings and the page to these loggers, at the end: wandb,mlflow,trackio.",
    )(command)


def _read_loggers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    from roundoff.report.loggers.logged_run import check_loggers

    return check_loggers(name.strip() for name in value.split(",") if name.strip())


def repeatable_options(command: Command) -> Command:
    """Declare what makes a script repeatable: `--seed`, `--deterministic` and `--repeat-batch`."""
    return declare(
        click.option(
            "--seed",
            type=click.IntRange(0, _MAX_SEED),
            help="Seed of every random generator, set before the script starts.",
        ),
        click.option("--deterministic", is_flag=True, help="Use deterministic kernels of torch."),
        click.option("--repeat-batch", is_flag=True, help="Do not shuffle, and train on the first batch every step."),
    )(command)


def backend_options(command: Command) -> Command:
    """Declare how many trainings run at a time, and where: `--jobs` and `--on`."""
    return declare(
        click.option(
            "--jobs",
            type=click.IntRange(min=0),
            default=1,
            show_default=True,
            help="Trainings at a time (0: in this process).",
        ),
        click.option(
            "--on",
            type=click.Choice(["pool", "ray"]),
            default="pool",
            show_default=True,
            help="Train in processes on this machine, or on a Ray cluster (RAY_ADDRESS, by default on this machine).",
        ),
    )(command)


def script_arguments(metavar: str = "SCRIPT [ARGS]...") -> Callable[[Command], Command]:
    """Declare `-m` and the script with its arguments, which are passed as `is_module` and `words`."""
    return declare(
        click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module."),
        click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar=metavar),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What the commands have in common that run a script: `script_arguments`, `repeatable_options`, `json_option`."""

    example: ClassVar[str]
    """The command with a script, for the error that no script was named."""

    words: tuple[str, ...]
    is_module: bool
    seed: int | None
    deterministic: bool
    repeat_batch: bool
    as_json: bool

    def script(self) -> Script:
        """Return the script, which exists."""
        from roundoff.record.script import parse_script_command

        script = parse_script_command(self.words, is_module=self.is_module, example=self.example)
        script.check()
        return script

    def repeating(self) -> AbstractContextManager[None]:
        """Return a block inside which the script is as repeatable as was requested."""
        from roundoff.record.repeatable import repeatable

        return repeatable(seed=self.seed, deterministic=self.deterministic, repeat_batch=self.repeat_batch)


def selection_options(*, steps: str, steps_help: str) -> Callable[[Command], Command]:
    """Declare which events a command looks at: `--steps`, `--sites`, `--ops` and `--phases`."""
    return declare(
        click.option("--steps", default=steps, show_default=True, help=steps_help),
        _only_option("--sites", "PATTERN", "these sites, such as 'blocks.*'"),
        _only_option("--ops", "PATTERN", "these ops, such as 'aten.*mm' or 'softmax'"),
        _only_option("--phases", "PHASE", "forward, backward, optimizer or eval"),
    )


def _only_option(name: str, metavar: str, what: str) -> Callable[[Command], Command]:
    return click.option(name, multiple=True, metavar=metavar, help=f"Only {what}. Repeatable.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions(ScriptOptions):
    """The options of commands that look at some events of a script: those of `selection_options`."""

    steps: str
    sites: tuple[str, ...]
    ops: tuple[str, ...]
    phases: tuple[str, ...]

    def selection(self) -> EventSelection:
        """Return which events they select."""
        from roundoff.record.event_selection import EventSelection, parse_steps

        chosen = {"sites": self.sites or None, "ops": self.ops or None, "phases": self.phases or None}
        return EventSelection.of(steps=parse_steps(self.steps), **chosen)


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
    """An amount of memory, `500MB` or `2GB`.

    >>> Bytes().convert("500MB", None, None), Bytes().convert("1.5 GiB", None, None), Bytes().convert("12", None, None)
    (500000000, 1610612736, 12)
    """

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"'{value}' is not an amount of memory such as 500MB or 2GB.", param, ctx)
        return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[(match[2] or "").upper()])
