"""`roundoff schema`; that real output keeps to the schemas is checked where tests print JSON (tests/conftest.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, ValidationError

from roundoff.cli import command_line
from roundoff.cli.json_output import SHAPES, schema_of
from roundoff.runs import Finding
from roundoff.runs.records.finding import FINDING_FIELDS
from tests.json_schemas import check_json


def commands_with_json(group: click.Group, prefix: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if any("--json" in param.opts for param in command.params):
            yield prefix + name
        if isinstance(command, click.Group):
            yield from commands_with_json(command, f"{prefix}{name}-")


def test_every_command_with_json_has_a_schema():
    named = {name if name != "runs-list" else "runs" for name in commands_with_json(command_line)}
    assert set(SHAPES) - named == {"diagnose-finding", "plan-watch", "replay-again"}
    assert named <= set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_schema_is_printed_and_valid(name: str):
    printed = json.loads(CliRunner().invoke(command_line, ["schema", name]).stdout)
    assert printed["$id"] == f"roundoff/{name}/{SHAPES[name][0]}"
    Draft202012Validator.check_schema(printed)


def test_the_schema_of_a_finding_lists_its_fields():
    assert tuple(schema_of("run")["$defs"]["finding"]["properties"]) == FINDING_FIELDS


def test_output_that_is_not_what_the_schema_says_is_refused():
    finding = Finding(rule="overflow", severity="error", confidence=1.0, title="", why="", fix="").to_object()
    good = {
        "schema": "roundoff/run/1",
        "run": "runs/a",
        "watched": "complete",
        "not_watched": [],
        "findings": [finding],
    }
    check_json("run", json.loads(json.dumps(good)))
    for bad in ({**good, "steps": "3"}, {**good, "more": 1}, {**good, "schema": "roundoff/run/2"}):
        with pytest.raises(ValidationError):
            check_json("run", json.loads(json.dumps(bad)))


def test_an_unknown_schema_is_refused_with_a_suggestion():
    result = CliRunner().invoke(command_line, ["schema", "diagnos"])
    assert result.exit_code == 2
    assert "did you mean 'diagnose'?" in result.stderr
