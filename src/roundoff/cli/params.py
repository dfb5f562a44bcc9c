"""`roundoff params`: the tensors of a model or of a checkpoint of any framework."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import json_option
from roundoff.cli.terminal import ExitCode, echo, exit_code_of
from roundoff.errors import ReplayError, UsageError

if TYPE_CHECKING:
    from roundoff.checkpoints.inventory import Inventory
    from roundoff.runs import JsonValue

MAX_NAMES = 8


@click.command("params", epilog="Example: roundoff params model.safetensors --only '*.bias' --values")
@click.argument("source", metavar="FILE|MODEL")
@click.option("--only", metavar="PATTERN", help="Only tensors whose names match: '*.bias'.")
@click.option("--values", is_flag=True, help="Show mean, standard deviation, minimum and maximum of each.")
@click.option("--optimizer", is_flag=True, help="Also list the optimizer's tensors.")
@json_option("Print one JSON object, with everything.")
@click.pass_context
def params_command(
    ctx: click.Context, source: str, only: str | None, values: bool, optimizer: bool, as_json: bool
) -> None:
    """List the tensors of a checkpoint or a model: names, shapes, dtypes, sizes, and suspicious values.

    FILE is a checkpoint of PyTorch (.pt, .safetensors, sharded, distributed), MindSpore, Paddle, Keras, Flax or numpy,
    recognized by its content and read without its framework. MODEL is package.module:function or file.py:function: the
    function builds an nn.Module. Exits with 1 if a tensor contains NaN or infinity where it should not, and with 2 if
    that could not be checked, because values are read with torch and it is not installed.
    """
    inventory = _inventory(source)
    if only is not None:
        inventory = _only(inventory, only)
    if as_json:
        echo_json("params", _to_object(inventory), indent=1)
    else:
        from roundoff.report.params_text import params_text

        echo(params_text(inventory, values=values, optimizer=optimizer))
    is_found = any(item.is_broken for item in inventory.items)
    ctx.exit(exit_code_of(is_found) if inventory.has_values else ExitCode.COULD_NOT_LOOK)


def _inventory(source: str) -> Inventory:
    from roundoff.checkpoints.inventory import take_inventory, take_model_inventory

    _check_kind(Path(source))
    if ":" not in source or Path(source).exists():
        from roundoff.checkpoints.read.dispatch import read_checkpoint

        with read_checkpoint(source) as checkpoint:
            return take_inventory(checkpoint)
    from roundoff.replay.saved.builder import Builder

    try:
        built = Builder(source)()
    except ReplayError as error:
        raise UsageError(str(error)) from error
    return take_model_inventory(built.models, source=source)


def _check_kind(path: Path) -> None:
    """Raise if this is something else that roundoff knows, and say what to type instead."""
    if (path / "run.json").is_file():
        raise UsageError.explain(
            f"'{path}' is a run, not a checkpoint.",
            why="a run contains measurements of a training, not its weights.",
            fix=f"roundoff diagnose {path}, or roundoff params with the checkpoint that the training wrote.",
        )
    if path.suffix == ".py" and path.is_file():
        raise UsageError.explain(
            f"'{path}' is a script, not a checkpoint.",
            why="a function of it must build the model first.",
            fix=f"roundoff params {path}:FUNCTION, with a function that takes nothing and returns an nn.Module.",
        )


def _only(inventory: Inventory, pattern: str) -> Inventory:
    kept = inventory.only(pattern)
    if not kept.items:
        names = ", ".join(item.name for item in inventory.items[:MAX_NAMES])
        raise UsageError.explain(
            f"No tensor of '{inventory.source}' is like '{pattern}'.",
            why=f"it has {names}{', ...' if len(inventory.items) > MAX_NAMES else ''}." if names else "it has none.",
        )
    return kept


def _to_object(inventory: Inventory) -> dict[str, JsonValue]:
    return {
        "source": inventory.source,
        "format": inventory.format,
        "has_values": inventory.has_values,
        "num_elements": sum(item.num_elements for item in inventory.items),
        "tensors": [{**dataclasses.asdict(item), "num_elements": item.num_elements} for item in inventory.items],
        "settings": inventory.settings,
    }
