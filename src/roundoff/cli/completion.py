"""`roundoff completion`: let the shell complete commands, options and files."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from roundoff.cli.terminal import echo
from roundoff.errors import UsageError
from roundoff.files import append_text, write_output

SHELLS = ("bash", "zsh", "fish")
_MARK = "# completion of roundoff"
_ZSH_START = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }; "
"""Completion is off in a zsh that has no configuration."""


@click.command("completion", epilog="Example: roundoff completion --install")
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Write the script, and let new shells load it.")
def completion_command(shell: str | None, install: bool) -> None:
    """Print the script by which SHELL (by default yours) completes what you type, or install it for this user."""
    shell = shell or _own_shell()
    script = _script(shell)
    if not install:
        echo(script, nl=False)
        return
    try:
        changed = install_script(shell, script, home=Path.home())
    except OSError as error:
        raise UsageError.explain(f"'{error.filename}' cannot be written.", why=f"{error.strerror}.") from error
    echo("\n".join(f"wrote {path}" for path in changed) or "It is installed already.")
    echo(f"New {shell} shells complete roundoff.")


def install_script(shell: str, script: str, *, home: Path) -> list[Path]:
    """Write the script where the shell finds it, or name it in the shell's own file; return the files that changed."""
    if shell == "fish":
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return _write(folder / "fish" / "completions" / "roundoff.fish", script)
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    file = data / "roundoff" / f"completion.{shell}"
    settings = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    line = f"{_ZSH_START if shell == 'zsh' else ''}source {shlex.quote(str(file))}  {_MARK}"
    return [*_write(file, script), *_append(settings, line)]


def _write(path: Path, text: str) -> list[Path]:
    if path.exists() and path.read_bytes() == text.encode():
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, text.encode())
    return [path]


def _append(settings: Path, line: str) -> list[Path]:
    """Add a line to the end of the user's own file, whose other bytes stay as they are."""
    before = settings.read_bytes() if settings.exists() else b""
    if line.encode() in before.split(b"\n"):
        return []
    append_text(settings.resolve(), ("" if before.endswith(b"\n") or not before else "\n") + line + "\n")
    return [settings]


def _script(shell: str) -> str:
    found = get_completion_class(shell)
    assert found is not None, shell
    group = click.get_current_context().find_root().command
    # Not `source`: click asks the bash on the PATH for its version there, and there may be none.
    completion = found(group, {}, "roundoff", "_ROUNDOFF_COMPLETE")
    return str(completion.source_template % completion.source_vars())


def _own_shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell in SHELLS:
        return shell
    raise UsageError.explain(
        "Which shell?", why=f"SHELL is '{os.environ.get('SHELL', '')}'.", fix="name it: roundoff completion bash"
    )
