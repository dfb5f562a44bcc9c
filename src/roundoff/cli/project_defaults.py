"""Defaults of options from `[tool.roundoff]` in a project's pyproject.toml."""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from roundoff.errors import UsageError

VARIABLE = "ROUNDOFF_CONFIG"
"""Names the file to read instead; if it is empty, none is read."""
_TABLE = b"tool.roundoff"
_DEFAULT_IN_HELP = re.compile(r"\s*\[default: [^]]*\]$")

Commands = Mapping[str, Callable[[], click.Command]]
"""Every command by name, imported when it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectDefaults:
    """What a file says about the options of all commands, and of each one."""

    file: Path
    shared: Mapping[str, Any]
    of_command: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The file, as messages name it."""
        return os.path.relpath(self.file)

    def check_names(self, commands: Commands) -> None:
        """Raise an error for a key that is no option of any command, or not of the command whose table it is in."""
        for name, table in self.of_command.items():
            if name not in commands:
                what = f"There is no command '{name}', whose defaults '{self.name}' sets."
                raise UsageError.explain(what + _guess(name, commands), fix="see: roundoff docs ci")
            options = options_of(commands[name]())
            for key in table.keys() - options.keys():
                what = f"`roundoff {name}` has no option '{key}', which '{self.name}' sets."
                raise UsageError.explain(what + _guess(key, options), fix=f"see: roundoff {name} --help")
        for key in self.shared:
            if not any(key in options_of(load()) for load in commands.values()):
                known = {option for load in commands.values() for option in options_of(load())}
                what = f"There is no option '{key}', which '{self.name}' sets."
                raise UsageError.explain(what + _guess(key, known), fix="see: roundoff docs ci")

    def apply(self, name: str, command: click.Command, context: click.Context) -> click.Command:
        """Return the command with these defaults, and with help that says where they come from."""
        options = options_of(command)
        table = {**self.shared, **self.of_command.get(name, {})}
        values = {key: self._value(options[key], key, table[key]) for key in options if key in table}
        if not values:
            return command
        defaults = {str(options[key].name): value for key, value in values.items()}
        context.default_map = {**(context.default_map or {}), name: defaults}
        shown = {id(options[key]): self._show(options[key], value) for key, value in values.items()}
        command = copy.copy(command)
        command.params = [shown.get(id(parameter), parameter) for parameter in command.params]
        return command

    def _value(self, option: click.Option, key: str, value: Any) -> Any:
        """Return a value as click takes it, after it has been tried."""
        if isinstance(option.type, click.Path) and isinstance(value, str):
            value = os.path.relpath(self.file.parent / Path(value).expanduser())
        try:
            if option.is_flag != isinstance(value, bool) or option.multiple != isinstance(value, list):
                wanted = "true or false" if option.is_flag else "a list" if option.multiple else "one value"
                raise click.BadParameter(f"it must be {wanted}.")
            option.type_cast_value(click.Context(click.Command(None)), value)
        except click.BadParameter as error:
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            raise UsageError.explain(f"Invalid {key} = {shown} in '{self.name}'.", why=error.message) from error
        return value

    def _show(self, option: click.Option, value: Any) -> click.Option:
        """Return an option whose help names its default and where that comes from."""
        texts = value if isinstance(value, list) else [str(value).lower() if isinstance(value, bool) else value]
        option = copy.copy(option)
        option.help = _DEFAULT_IN_HELP.sub("", option.help or "")
        option.show_default = f"{', '.join(map(str, texts))}, from {self.name}"
        return option


def _guess(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by the names that a file gives them: without dashes in front."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name[2:]: option for option in options for name in option.opts if name.startswith("--")}


def read_project_defaults() -> ProjectDefaults | None:
    """Return what the nearest file says that has a table, from the working directory upwards; None if none has."""
    file = _find_file()
    if file is None:
        return None
    import tomllib

    try:
        table = tomllib.loads(file.read_bytes().decode()).get("tool", {}).get("roundoff", {})
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError.explain(f"'{os.path.relpath(file)}' cannot be read.", why=f"{why}.") from error
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    shared = {key: value for key, value in table.items() if key not in tables}
    return ProjectDefaults(file=file, shared=shared, of_command=tables)


def _find_file() -> Path | None:
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).absolute() if named else None
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return None
    return next((path for folder in (here, *here.parents) if _has_table(path := folder / "pyproject.toml")), None)


def _has_table(path: Path) -> bool:
    try:
        return _TABLE in path.read_bytes()
    except OSError:
        return False
