"""`roundoff skill`: how an agent uses roundoff, as a file that agents read."""

from __future__ import annotations

from pathlib import Path

import click

from roundoff.cli.terminal import echo
from roundoff.errors import UsageError
from roundoff.files import write_output

SKILL = Path(__file__).parent / "SKILL.md"
DEFAULT_FOLDER = ".agents/skills"


@click.command("skill", epilog="Example: roundoff skill --install .claude/skills")
@click.option(
    "--install",
    metavar="[DIR]",
    is_flag=False,
    flag_value=DEFAULT_FOLDER,
    help=f"Write it to DIR/roundoff/SKILL.md.  [DIR: {DEFAULT_FOLDER}]",
)
def skill_command(install: str | None) -> None:
    """Print SKILL.md, which explains to an agent how to find and fix faults; --install puts it where agents look."""
    text = SKILL.read_text(encoding="utf-8")
    if install is None:
        echo(text.rstrip())
        return
    target = Path(install) / "roundoff" / SKILL.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_output(target, text.encode())
    except OSError as error:
        raise UsageError.explain(
            f"'{target}' cannot be written.", why=f"{error.strerror}.", fix="name another directory: --install DIR"
        ) from error
    echo(target)
