"""Turning switches on for a block: the table of switches, and what they are asked for."""

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
    "substitute": "roundoff.switches.substitute.switch",
}
"""Where each switch lives, in the order in which they are turned on."""


class Switch(Protocol):
    """What the file of a switch holds."""

    OPTIONS: frozenset[str]
    """What may stand behind its name and a dot: `ops` for `substitute.ops`."""

    def switching(self, value: str, options: Mapping[str, str]) -> AbstractContextManager[Any]:
        """Return the block in which the switch is on.

        Raises:
            SwitchError: the value or an option cannot be.
        """


def switched(switches: Mapping[str, str | float]) -> AbstractContextManager[None]:
    """Change how everything inside the block computes, and nothing else.

    Args:
        switches: What each switch is set to, and its options: `{"randomness": "0"}`,
            `{"substitute": "fp64", "substitute.ops": "blocks.1.attn"}`. A number means its text; an empty mapping
            changes nothing.

    Raises:
        SwitchError: a switch, its value or an option does not exist; raised before the block is entered.
    """
    texts = _check_and_stringify(switches)
    asked = _options_by_switch(texts)
    blocks = []
    for name, home in _SWITCH_MODULES.items():
        if name in asked:
            switch = cast(Switch, importlib.import_module(home))
            _check_options(name, asked[name], switch.OPTIONS)
            blocks.append(switch.switching(texts[name], asked[name]))
    return _entering_all(blocks)


@contextmanager
def _entering_all(blocks: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as entered:
        for block in blocks:
            entered.enter_context(block)
        yield


def switches_in_environment() -> dict[str, str]:
    """Return the switches that `ROUNDOFF_SWITCHES` holds as JSON, so that a tool can steer an unchanged script.

    Raises:
        SwitchError: it is not an object of texts, or names a switch that does not exist.
    """
    text = os.environ.get(SWITCHES_VARIABLE, "")
    if not text:
        return {}
    try:
        switches = json.loads(text)
    except json.JSONDecodeError as error:
        raise _variable_error(text, f"it is not JSON: {error}") from error
    if not isinstance(switches, dict) or not all(isinstance(value, str) for value in switches.values()):
        raise _variable_error(text, "it is not an object of texts")
    try:
        _options_by_switch(switches)
    except SwitchError as error:
        raise SwitchError(f"In the environment variable {SWITCHES_VARIABLE}: {error}") from error
    return switches


def _check_and_stringify(switches: Mapping[str, str | float]) -> dict[str, str]:
    """Return the switches with numbers as texts; callers without a type checker hand in anything."""
    if not isinstance(switches, Mapping):
        raise _switches_error(switches, "it is not a mapping from switches to what they are set to")
    for name, value in switches.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _switches_error(switches, f"{name!r} is set to {value!r}; names are texts, values texts or numbers")
    return {name: str(value) for name, value in switches.items()}


def _options_by_switch(switches: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the options of every switch that is asked for."""
    asked: dict[str, dict[str, str]] = {name: {} for name in switches if "." not in name}
    for key, value in switches.items():
        name, dot, option = key.partition(".")
        if name not in _SWITCH_MODULES:
            raise SwitchError.explain(
                f"No switch '{name}'.",
                why=f"the switches are {', '.join(sorted(_SWITCH_MODULES))}.",
                fix="correct the name.",
            )
        if dot and name not in asked:
            raise SwitchError.explain(
                f"'{key}' = '{value}' says how '{name}' is to be, and '{name}' is not on.", fix=f"set '{name}', too."
            )
        if dot:
            asked[name][option] = value
    return asked


def _check_options(name: str, options: Mapping[str, str], allowed: frozenset[str]) -> None:
    for option in options:
        if option not in allowed:
            known = ", ".join(f"{name}.{each}" for each in sorted(allowed))
            raise SwitchError.explain(
                f"The switch '{name}' has no option '{name}.{option}'.",
                why=f"it has {known}." if known else "it has none.",
                fix="correct the name: docs/switches.md",
            )


def _switches_error(switches: object, why: str) -> SwitchError:
    return SwitchError.explain(
        f"{switches!r} are no switches.", why=f"{why}.", fix="""write them like {"randomness": "0"}."""
    )


def _variable_error(text: str, why: str) -> SwitchError:
    return SwitchError.explain(
        f"The environment variable {SWITCHES_VARIABLE} = {text!r} cannot be used.",
        why=f"{why}.",
        fix=f"""write it like {SWITCHES_VARIABLE}='{{"randomness": "0"}}', or unset it.""",
    )
