"""The shell completes commands, options and files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundoff.cli import COMMANDS, GROUPS, command_line
from roundoff.cli.completion import SHELLS

ASK = """
source "$1"
COMP_WORDS=(roundoff "$2" "$3"); COMP_CWORD=$4
_roundoff_completion roundoff
echo "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_printed(shell: str) -> None:
    answer = CliRunner().invoke(command_line, ["completion", shell])
    assert answer.exit_code == 0
    assert f"{shell}_complete" in answer.output


def test_one_command_installs_it_and_twice_is_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'\n")
    first = CliRunner().invoke(command_line, ["completion", "--install"])
    file = tmp_path / ".local/share/roundoff/completion.bash"
    assert first.output == f"wrote {file}\nwrote {tmp_path / '.bashrc'}\nNew bash shells complete roundoff.\n"
    line = f"source {file}  # completion of roundoff"
    assert (tmp_path / ".bashrc").read_text() == f"alias ll='ls -l'\n{line}\n"
    second = CliRunner().invoke(command_line, ["completion", "--install"])
    assert second.output.startswith("It is installed already.")
    assert (tmp_path / ".bashrc").read_text().count("roundoff/completion.bash") == 1
    CliRunner().invoke(command_line, ["completion", "zsh", "--install"])
    assert "compinit" in (tmp_path / ".zshrc").read_text()
    CliRunner().invoke(command_line, ["completion", "fish", "--install"])
    assert (tmp_path / ".config/fish/completions/roundoff.fish").exists()


def test_without_a_known_shell_its_name_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    answer = CliRunner().invoke(command_line, ["completion"])
    assert answer.exit_code == 2
    assert "roundoff completion bash" in answer.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(CliRunner().invoke(command_line, ["completion", "bash"]).output)
    program = tmp_path / "roundoff"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m roundoff "$@"\n')
    program.chmod(0o755)

    def complete(*words: str) -> list[str]:
        arguments = ["bash", "-c", ASK, "bash", str(script), *words, *[""] * (2 - len(words)), str(len(words))]
        path = f"{tmp_path}:/usr/bin:/bin"
        answer = subprocess.run(arguments, capture_output=True, text=True, env={"PATH": path}, timeout=120, check=True)
        return answer.stdout.split()

    assert complete("dia") == ["diagnose"]
    assert complete("diagnose", "--sa") == ["--sarif"]


def test_help_groups_the_commands_and_lists_each_once() -> None:
    text = CliRunner().invoke(command_line, ["--help"]).output
    grouped = [name for names in GROUPS.values() for name in names]
    assert set(grouped) <= set(COMMANDS)
    assert len(grouped) == len(set(grouped))
    places = [text.index(f"\n{title}:\n  {names[0]} ") for title, names in GROUPS.items()]
    assert places == sorted(places)
    for name, what in COMMANDS.items():
        assert text.count(f"\n  {name} ") == 1, name
        assert " ".join(what.split()) in " ".join(text.split())
