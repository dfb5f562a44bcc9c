import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from click.testing import CliRunner

from roundoff.cli import command_line

PLANTED = """
import click
from roundoff.errors import UsageError

@click.command()
@click.option("--number", type=int, default=0)
def planted_command(number):
    {body}
"""

DRIVER = """
import sys

import planted
from roundoff import cli

sys.modules["roundoff.cli.planted"] = planted
cli.command_line = cli.LazyGroup({"planted": "A command of the test."}, name="roundoff")
cli.main()
"""


def roundoff(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "roundoff", *arguments], capture_output=True, text=True, timeout=300)


def plant(folder: Path, body: str) -> list[str]:
    """Write a command line with one command whose body is ours, and return how to call it from `folder`."""
    (folder / "planted.py").write_text(PLANTED.format(body=body))
    (folder / "driver.py").write_text(DRIVER)
    return [sys.executable, "driver.py", "planted"]


def run_planted(folder: Path, body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*plant(folder, body), *arguments], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_help_names_every_command_in_the_order_of_the_table_and_ends_with_an_example():
    text = CliRunner().invoke(command_line, ["--help"]).output
    places = [text.index(f"\n  {name} ") for name in command_line.table]
    assert places == sorted(places)
    assert text.splitlines()[-1].strip().startswith("Example: roundoff ")
    assert max(map(len, text.splitlines())) <= 80


def test_the_help_imports_nothing_heavy():
    code = (
        "import sys, contextlib; sys.argv = ['roundoff', '--help']\n"
        "from roundoff.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print([name for name in ('torch', 'numpy', 'backports.zstd', 'rich', 'safetensors') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_the_help_comes_within_a_fifth_of_a_second():
    # The best of several, by the processor's time: a busy machine can delay any start, but none can hurry one.
    best = float("inf")
    for _ in range(20):
        begin = os.times()
        assert roundoff("--help").returncode == 0
        end = os.times()
        best = min(best, end.children_user + end.children_system - begin.children_user - begin.children_system)
        if best < 0.2:
            break
    assert best < 0.2


@pytest.mark.parametrize("name", command_line.table)
def test_every_command_has_a_help_that_ends_with_an_example(name: str):
    answer = CliRunner().invoke(command_line, [name, "--help"])
    assert answer.exit_code == 0
    paragraphs = answer.output.strip().split("\n\n")
    assert paragraphs[-1].strip().startswith("Example: roundoff ")


def test_the_version_is_the_one_of_the_package():
    import roundoff as package

    answer = roundoff("--version")
    assert (answer.returncode, answer.stdout) == (0, f"roundoff {package.__version__}\n")


def test_an_unknown_command_ends_with_2_and_says_what_was_probably_meant():
    answer = roundoff("docter")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.splitlines()[-1] == "Error: There is no command 'docter'. Did you mean 'doctor'?"


def test_an_unknown_command_like_none_gets_no_guess():
    assert roundoff("zzz").stderr.splitlines()[-1] == "Error: There is no command 'zzz'."


def test_an_unknown_option_ends_with_2():
    answer = roundoff("--vresion")
    assert answer.returncode == 2
    assert "No such option" in answer.stderr


def test_our_own_errors_are_shown_without_a_traceback_and_end_with_2(tmp_path: Path):
    answer = run_planted(tmp_path, 'raise UsageError.explain("No.", why="because.", fix="this way.")')
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "UsageError: No.\n  why: because.\n  fix: this way.\n"


def test_a_wrong_argument_of_a_command_ends_with_2(tmp_path: Path):
    answer = run_planted(tmp_path, "pass", "--number", "many")
    assert answer.returncode == 2
    assert "'many' is not a valid integer" in answer.stderr


def test_a_failure_that_click_would_end_with_1_ends_with_2(tmp_path: Path):
    answer = run_planted(tmp_path, 'raise click.FileError("a.txt", "gone")')
    assert (answer.returncode, answer.stderr) == (2, "Error: Could not open file 'a.txt': gone\n")


def test_a_bug_keeps_its_traceback(tmp_path: Path):
    answer = run_planted(tmp_path, "1 / 0")
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr
    assert answer.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("body", ["click.get_current_context().exit(1)", "raise SystemExit(1)"])
def test_a_command_chooses_its_exit_code(tmp_path: Path, body: str):
    assert run_planted(tmp_path, body).returncode == 1


def test_an_interrupt_ends_with_130_in_silence(tmp_path: Path):
    command = plant(tmp_path, 'import time; print("ready", flush=True); time.sleep(60)')
    with subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "")


@pytest.mark.parametrize("num_lines", [1, 100_000])
def test_a_reader_that_leaves_early_ends_a_command_with_141_in_silence(tmp_path: Path, num_lines: int):
    command = plant(tmp_path, f'[print("line") for _ in range({num_lines})]')
    assert stderr_and_code_without_reader(command, tmp_path) == ("", 141)


def test_a_broken_pipe_other_than_stdout_is_reported(tmp_path: Path):
    answer = run_planted(tmp_path, 'raise BrokenPipeError(32, "a worker died")')
    assert answer.returncode == 1
    assert "a worker died" in answer.stderr


def test_the_help_survives_a_reader_that_leaves_early(tmp_path: Path):
    stderr, _ = stderr_and_code_without_reader([sys.executable, "-m", "roundoff", "--help"], tmp_path)
    assert stderr == ""


def stderr_and_code_without_reader(command: list[str], folder: Path) -> tuple[str, int]:
    """Run a command whose stdout is a pipe that no one reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        answer = subprocess.run(command, cwd=folder, stdout=writer, stderr=PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    return answer.stderr, answer.returncode


def test_says_where_options_of_the_script_go():
    text = CliRunner().invoke(command_line, ["run", "--lr", "3", "train.py"]).stderr
    assert "Options of the script come after it: roundoff run train.py --lr ..." in text
    text = CliRunner().invoke(command_line, ["report", "--lr", "3"]).stderr
    assert "No such option '--lr'" in text
    assert "script" not in text


def test_says_where_to_start_a_builder():
    text = CliRunner().invoke(command_line, ["what-if", "runs/a"]).stderr
    assert text.endswith(
        "Error: Missing option '--builder'. To write one, start from what `roundoff replay RUN` prints.\n"
    )


def test_names_the_newest_run_where_none_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(command_line, ["report"])
    assert (answer.exit_code, answer.stderr.splitlines()[-1]) == (
        2,
        "Error: Missing argument 'RUN'. There is none in runs/ here.",
    )
    for number, name in enumerate(("b", "a")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
        os.utime(tmp_path / "runs" / name / "run.json", (number, number))
    assert (
        CliRunner()
        .invoke(command_line, ["diagnose"])
        .stderr.endswith("Missing argument 'RUN'. The newest run here: roundoff diagnose runs/a\n")
    )
