"""`roundoff doctor`: whether this installation works, and what is missing for what."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator

import click

from roundoff.cli.health import Health, examine
from roundoff.cli.screen import columns


@click.command("doctor", epilog="Example: roundoff doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Check this installation, and say what is missing for what.

    Ends with 0 if everything the core needs works, and with 1 if not; optional things that are missing do not count.
    """
    health = examine()
    click.echo(to_json(health) if as_json else to_text(health))
    ctx.exit(1 if health.problems else 0)


def to_json(health: Health) -> str:
    """Lay out the findings as one JSON object, with `ok` first."""
    return json.dumps({"ok": not health.problems, **dataclasses.asdict(health)}, indent=1)


def to_text(health: Health) -> str:
    """Lay out the findings for a terminal: the verdict, what is broken, then what there is."""
    return "\n".join([*_verdict(health), "", *_inventory(health), *_missing(health)])


def _verdict(health: Health) -> Iterator[str]:
    if not health.problems:
        yield "roundoff works here."
        return
    yield f"roundoff does not work here: {_counted(len(health.problems), 'problem')}."
    for problem in health.problems:
        yield f"  {problem.what}"
        yield f"    fix: {problem.fix}"


def _inventory(health: Health) -> Iterator[str]:
    yield _row("versions", ", ".join(f"{name} {version or 'missing'}" for name, version in health.versions.items()))
    if health.num_threads is not None:
        yield _row("devices", f"{', '.join(health.devices)} ({_counted(health.num_threads, 'CPU thread')})")
    if health.kernels is not None:
        yield _row("kernels", health.kernels)
    if health.kernels_fix is not None:
        yield _row("", "slower, but everything works")
        yield _row("", f"fix: {health.kernels_fix}")
    if health.private_calls:
        present = sum(call.present for call in health.private_calls)
        yield _row("torch", f"{present} of {len(health.private_calls)} private calls are there")
    for feature in health.features:
        if not feature.missing:
            yield _row("optional", f"{feature.name}: ready")


def _missing(health: Health) -> Iterator[str]:
    for feature in health.features:
        if feature.missing:
            yield _row("optional", f"{feature.name}: {' and '.join(feature.missing)} missing")
            yield _row("", f"fix: {feature.fix}")


def _row(label: str, text: str) -> str:
    lines = textwrap.wrap(text, columns() - 11, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(f"{'' if number else label:<10} {line}" for number, line in enumerate(lines))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
