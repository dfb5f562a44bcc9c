"""`roundoff schema`: the JSON schema of what a command prints with --json."""

from __future__ import annotations

import difflib
import json

import click

from roundoff.cli.json_output import SHAPES, schema_id, schema_of
from roundoff.cli.terminal import echo
from roundoff.errors import UsageError


@click.command("schema", epilog="Example: roundoff schema diagnose")
@click.argument("command", required=False)
def schema_command(command: str | None) -> None:
    """Print the JSON schema of what COMMAND prints with --json; without COMMAND, list the schemas.

    The number in its id changes when a field is removed or means something else; fields may be added at any time.
    """
    if command is None:
        echo("\n".join(schema_id(name) for name in SHAPES))
        return
    if command not in SHAPES:
        close = difflib.get_close_matches(command, SHAPES, n=1)
        fix = f"did you mean '{close[0]}'?" if close else "`roundoff schema` lists those that exist."
        raise UsageError.explain(f"There is no schema '{command}'.", fix=fix)
    echo(json.dumps(schema_of(command), indent=1))
