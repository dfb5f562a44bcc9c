"""Turns switches on for a block: the table of switches, and how they are read."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, Protocol, cast

from roundoff.errors import SwitchError

SWITCHES_VARIABLE: Final = "ROUNDOFF_SWITCHES"

_SWITCH_MODULES: Final = {
    "widest": "roundoff.switches.widest",
    "adaptive": "roundoff.switches.adaptive",
    "randomness": "roundoff.switches.randomness",
    "substitute": "roundoff.switches.substitute",
}
"""The module of each switch, in the order in which they are turned on."""


class Switch(Protocol):
    """What the module of a switch must define."""

    OPTIONS: frozenset[str]
    """The names of its options, which follow its name and a dot: `ops` for `substitute.ops`."""

    def turning_on(self, value: str, options: Mapping[str, str]) -> AbstractContextManager[Any]:
        """Return the block in which the switch is on.

        Raises:
            SwitchError: the value or an option is invalid.
        """


def switching(switches: Mapping[str, str | float]) -> AbstractContextManager[None]:
    """Change how everything inside the block computes, and nothing else.

    Args:
        switches: The value of each switch, and its options: `{"randomness": "0"}`,
            `{"substitute": "fp64", "substitute.ops": "blocks.1.attn"}`. Numbers may be given instead of strings; an
            empty mapping changes nothing.

    Raises:
        SwitchError: a switch, its value or an option does not exist; raised before the block is entered.
    """
    texts = _check_and_stringify(switches)
    requested = _options_by_switch(texts)
    blocks = []
    for name, home in _SWITCH_MODULES.items():
        if name in requested:
            switch = cast(Switch, importlib.import_module(home))
            _check_options(name, requested[name], switch.OPTIONS)
            blocks.append(switch.turning_on(texts[name], requested[name]))
    return _entering_all(blocks)


@contextmanager
def _entering_all(blocks: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as entered:
        for block in blocks:
            entered.enter_context(block)
        yield


def switches_in_environment() -> dict[str, str]:
    """Return the switches in `ROUNDOFF_SWITCHES`, given as JSON, which control an unmodified script.

    Raises:
        SwitchError: it is not an object with string values, or names a switch that does not exist.
    """
    text = os.environ.get(SWITCHES_VARIABLE, "")
    if not text:
        return {}
    try:
        switches = json.loads(text)
    except json.JSONDecodeError as error:
        raise _variable_error(text, f"it is not JSON: {error}") from error
    if not isinstance(switches, dict) or not all(isinstance(value, str) for value in switches.values()):
        raise _variable_error(text, "it is not an object with string values")
    try:
        _options_by_switch(switches)
    except SwitchError as error:
        raise SwitchError(f"In the environment variable {SWITCHES_VARIABLE}: {error}") from error
    return switches


def _check_and_stringify(switches: Mapping[str, str | float]) -> dict[str, str]:
    """Return the switches with numbers as strings; raise if names or values have other types."""
    if not isinstance(switches, Mapping):
        raise _switches_error(switches, "it is not a mapping from switches to values")
    for name, value in switches.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _switches_error(switches, f"{name!r}: {value!r}; names are strings, values strings or numbers")
    return {name: str(value) for name, value in switches.items()}


def _options_by_switch(switches: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the options of every requested switch."""
    requested: dict[str, dict[str, str]] = {name: {} for name in switches if "." not in name}
    for key, value in switches.items():
        name, dot, option = key.partition(".")
        if name not in _SWITCH_MODULES:
            raise SwitchError.explain(
                f"No switch '{name}'.",
                why=f"the switches are {', '.join(sorted(_SWITCH_MODULES))}.",
                fix="correct the name.",
            )
        if dot and name not in requested:
            raise SwitchError.explain(
                f"'{key}' is an option of '{name}', which is not on.", fix=f"set '{name}' as well."
            )
        if dot:
            requested[name][option] = value
    return requested


def _check_options(name: str, options: Mapping[str, str], allowed: frozenset[str]) -> None:
    for option in options:
        if option not in allowed:
            known = ", ".join(f"{name}.{each}" for each in sorted(allowed))
            raise SwitchError.explain(
                f"The switch '{name}' has no option '{name}.{option}'.",
                why=f"it has {known}." if known else "it has none.",
                fix="correct the name: roundoff docs switches",
            )


def _switches_error(switches: object, why: str) -> SwitchError:
    return SwitchError.explain(
        f"Invalid switches {switches!r}.", why=f"{why}.", fix="""write them like {"randomness": "0"}."""
    )


def _variable_error(text: str, why: str) -> SwitchError:
    return SwitchError.explain(
        f"Invalid environment variable {SWITCHES_VARIABLE} = {text!r}.",
        why=f"{why}.",
        fix=f"""write it like {SWITCHES_VARIABLE}='{{"randomness": "0"}}', or unset it.""",
    )
