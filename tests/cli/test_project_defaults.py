"""Defaults from `[tool.roundoff]` in pyproject.toml: applied where an option is not given, and checked."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.cli.run import RunOptions, run_command
from tests.run_folders import losses, write_run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROUNDOFF_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """Collect the options of `roundoff run`, which runs nothing."""
    found: list[RunOptions] = []
    monkeypatch.setattr(run_command, "callback", lambda **options: found.append(RunOptions(**options)))
    return found


def write(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text)


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def run_options(seen: list[RunOptions], *arguments: str) -> RunOptions:
    assert invoke("run", *arguments, "train.py").exit_code == 0
    return seen[-1]


def test_defaults_are_used_where_options_are_not_given(project: Path, seen: list[RunOptions]) -> None:
    write(project, '[tool.roundoff]\nbudget = "5%"\nprobe-seconds = 3\nfail-on = "warning"\nevery-step = true\n')
    options = run_options(seen)
    assert (options.budget, options.probe_seconds, options.fail_on, options.every_step) == (0.05, 3.0, "warning", True)
    options = run_options(seen, "--budget", "1%", "--fail-on", "error")
    assert (options.budget, options.probe_seconds, options.fail_on) == (0.01, 3.0, "error")


def test_a_table_is_for_one_command_and_goes_before_what_is_for_all(project: Path, seen: list[RunOptions]) -> None:
    write(project, "[tool.roundoff]\nseed = 1\n[tool.roundoff.run]\nseed = 2\n[tool.roundoff.record]\nstacks = true\n")
    assert run_options(seen).seed == 2


def test_without_the_table_nothing_changes(project: Path, seen: list[RunOptions]) -> None:
    before = run_options(seen)
    write(project, '[project]\nname = "mine"\n[tool.ruff]\nline-length = 100\n')
    assert run_options(seen) == before


def test_the_nearest_file_with_a_table_counts_and_its_paths_are_relative_to_it(
    project: Path, seen: list[RunOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, '[tool.roundoff]\nruns = "out/runs"\n')
    inner = project / "package" / "scripts"
    inner.mkdir(parents=True)
    (inner.parent / "pyproject.toml").write_text('[project]\nname = "no table"\n')
    assert run_options(seen).runs == Path("out/runs")
    monkeypatch.chdir(inner)
    assert run_options(seen).runs == Path("../../out/runs")


def test_a_list_is_an_option_that_is_given_several_times(project: Path) -> None:
    write(project, '[tool.roundoff.compare]\ngate = ["mean-loss=2%"]\n')
    for name in ("a", "b"):
        write_run(project / name, losses(2.0, 1.5, 1.2))
    assert "mean-loss" in invoke("compare", "a", "b").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bugdet = '5%'", "There is no option 'bugdet', which 'pyproject.toml' sets. Did you mean 'budget'?"),
        (
            "probe_seconds = 3",
            "There is no option 'probe_seconds', which 'pyproject.toml' sets. Did you mean 'probe-seconds'?",
        ),
        ("zzz = 3", "There is no option 'zzz', which 'pyproject.toml' sets."),
        ("run.stacks = true", "`roundoff run` has no option 'stacks', which 'pyproject.toml' sets."),
        ("runn.budget = '5%'", "There is no command 'runn', whose defaults 'pyproject.toml' sets. Did you mean 'run'?"),
        ("budget = 'lots'", "Invalid budget = 'lots' in 'pyproject.toml'."),
        ("every-step = 1", "Invalid every-step = 1 in 'pyproject.toml'."),
        ("seed = true", "Invalid seed = true in 'pyproject.toml'."),
        ("budget =", "'pyproject.toml' cannot be read."),
    ],
)
def test_a_mistake_is_an_error_that_names_what_was_probably_meant(project: Path, text: str, message: str) -> None:
    write(project, f"[tool.roundoff]\n{text}\n")
    result = invoke("run", "train.py")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == f"UsageError: {message}"


def test_an_option_that_only_other_commands_have_is_fine(project: Path) -> None:
    write(project, '[tool.roundoff]\nbudget = "5%"\nfail-on = "warning"\n')
    write_run(project / "a", losses(2.0, 1.5, 1.2))
    assert invoke("diagnose", "a").exit_code == 0


def test_help_says_where_a_default_comes_from(project: Path) -> None:
    write(project, '[tool.roundoff]\nbudget = "5%"\nfail-on = "warning"\nname = "mine"\n')
    text = " ".join(invoke("run", "--help").stdout.split())
    assert "Maximum overhead of watching. [default: (5%, from pyproject.toml)]" in text
    assert "[default: (warning, from pyproject.toml)]" in text
    assert "Name of the run. [default: (mine, from pyproject.toml)]" in text
    write(project, "")
    text = " ".join(invoke("run", "--help").stdout.split())
    assert "Maximum overhead of watching. [default: 2%]" in text
    assert "Name of the run. [default: the script's name, numbered]" in text
    assert "pyproject.toml" not in text


def test_a_variable_names_another_file_or_none(
    project: Path, seen: list[RunOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "[tool.roundoff]\nseed = 1\n")
    (project / "ci.toml").write_text("[tool.roundoff]\nseed = 2\n")
    monkeypatch.setenv("ROUNDOFF_CONFIG", "ci.toml")
    assert run_options(seen).seed == 2
    monkeypatch.setenv("ROUNDOFF_CONFIG", "")
    assert run_options(seen).seed is None
    monkeypatch.setenv("ROUNDOFF_CONFIG", "gone.toml")
    assert invoke("run", "train.py").stderr.startswith("UsageError: 'gone.toml' cannot be read.\n")


def test_every_option_has_a_name_that_a_file_can_set() -> None:
    context = click.Context(command_line)
    for name in command_line.table:
        command = command_line.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option) and option.name != "is_module":
                assert any(re.fullmatch("--[a-z0-9-]+", each) for each in option.opts), (name, option.opts)


def test_a_command_without_a_table_reads_no_toml(project: Path) -> None:
    write(project, '[project]\nname = "mine"\n')
    sys.modules.pop("tomllib", None)
    invoke("docs", "--help")
    assert "tomllib" not in sys.modules
