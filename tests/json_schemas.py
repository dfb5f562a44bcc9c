"""Validates what commands print with --json against their schemas: a field that no schema lists is an error too."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from roundoff.cli.json_output import SHAPES, schema_of

_OF_SEVERAL_WORDS = {("runs", "show"): "runs-show", ("recipes", "show"): "recipes-show"}


def check_json(name: str, printed: Any) -> None:
    """Raise if what a command printed is not what its schema says."""
    validator(name).validate(printed)


@functools.cache
def validator(name: str) -> Draft202012Validator:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def checking_json(invoke: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap `CliRunner.invoke` so that the JSON of a command is validated."""

    @functools.wraps(invoke)
    def checked(self: CliRunner, cli: Any, args: Sequence[str] | str | None = None, **options: Any) -> Result:
        result = invoke(self, cli, args, **options)
        words = [str(word) for word in args] if isinstance(args, Sequence) and not isinstance(args, str) else []
        if "--json" in words and result.exit_code in (0, 1) and (text := _json_in(result.stdout)):
            printed = json.loads(text)
            check_json(_name(words, printed), printed)
        return result

    return checked


def _json_in(stdout: str) -> str | None:
    """Return what a command printed as JSON: all of it, or the last line where a script printed before."""
    last = stdout.rstrip().rpartition("\n")[2]
    return next((text for text in (stdout.strip(), last) if text.startswith(("{", "["))), None)


def _name(words: Sequence[str], printed: Any) -> str:
    if isinstance(printed, dict):
        name = str(printed["schema"]).split("/")[1]
        assert name in SHAPES, f"{printed['schema']} is no schema"
        return name
    name = _OF_SEVERAL_WORDS.get(tuple(words[:2]))
    return name or words[0]


def _closed(schema: Any) -> Any:
    """Return a schema that allows no other fields than those it lists."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(each) for name, each in schema.items()}
    return found if "properties" not in found else {"additionalProperties": False, **found}
