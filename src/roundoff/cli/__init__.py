"""The command line: arguments in, exit code out (see `ExitCode`)."""

from __future__ import annotations

import click

from roundoff.cli.console.exit_codes import silence_stdout_without_reader
from roundoff.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "demo": LazyCommand(
        module="roundoff.cli.demo",
        attribute="demo_command",
        help="Watch a training fail in fp16, find out why, and fix it.",
    ),
    "record": LazyCommand(
        module="roundoff.cli.record",
        attribute="record_command",
        help="Run a training script and record what some of its steps compute.",
        runs_scripts=True,
    ),
    "run": LazyCommand(
        module="roundoff.cli.run",
        attribute="run_command",
        help="Watch a training script and explain why when it breaks.",
        runs_scripts=True,
    ),
    "diagnose": LazyCommand(
        module="roundoff.cli.diagnose",
        attribute="diagnose_command",
        help="Explain what went wrong in a run and what to change.",
    ),
    "compare": LazyCommand(
        module="roundoff.cli.compare",
        attribute="compare_command",
        help="Find where a run, checkpoint or curve first differs from its reference.",
    ),
    "report": LazyCommand(
        module="roundoff.cli.report",
        attribute="report_command",
        help="Write a report about a run as one HTML file.",
    ),
    "serve": LazyCommand(
        module="roundoff.cli.serve",
        attribute="serve_command",
        help="Show a directory of runs in the browser, live.",
    ),
    "params": LazyCommand(
        module="roundoff.cli.params",
        attribute="params_command",
        help="List the tensors of a model or of a checkpoint of any framework.",
    ),
    "convert": LazyCommand(
        module="roundoff.cli.convert",
        attribute="convert_command",
        help="Convert a checkpoint from one framework to another.",
    ),
    "replay": LazyCommand(
        module="roundoff.cli.replay",
        attribute="replay_command",
        help="Run a saved bad step again, or export the op that failed.",
    ),
    "train": LazyCommand(
        module="roundoff.cli.train",
        attribute="train_command",
        help="Train a standard model on standard data at any precision.",
    ),
    "sweep": LazyCommand(
        module="roundoff.cli.sweep",
        attribute="sweep_command",
        help="Train every combination of a table of recipes and settings.",
    ),
    "throughput": LazyCommand(
        module="roundoff.cli.throughput",
        attribute="throughput_command",
        help="Measure which workers, threads, recipe and ranks train fastest on this machine.",
    ),
    "bisect": LazyCommand(
        module="roundoff.cli.bisect",
        attribute="bisect_command",
        help="Find the smallest set of layers that must stay wide, or the op that is wrong.",
    ),
    "plan": LazyCommand(
        module="roundoff.cli.plan",
        attribute="plan_command",
        help="Measure where precision is lost and write a recipe that trains.",
    ),
    "runs": LazyCommand(
        module="roundoff.cli.runs",
        attribute="runs_command",
        help="List runs and show their recorded steps.",
    ),
    "recipes": LazyCommand(
        module="roundoff.cli.recipes",
        attribute="recipes_command",
        help="List the training recipes and when to use which.",
    ),
    "formats": LazyCommand(
        module="roundoff.cli.formats",
        attribute="formats_command",
        help="Show which numbers a format can represent.",
    ),
    "doctor": LazyCommand(
        module="roundoff.cli.doctor",
        attribute="doctor_command",
        help="Check this installation and report what is missing.",
    ),
}
"""In the order in which a new user needs them; a module is imported only when its command is called."""

command_line = LazyGroup(
    COMMANDS,
    name="roundoff",
    help="Train neural networks at any numeric precision, and find out why when it goes wrong.\n\n"
    "Exit codes: 0 nothing found, 1 something found, 2 could not look. Commands that start a script pass on its exit "
    "code if that is not 0.",
    epilog="Example: roundoff run train.py",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="roundoff", message="%(prog)s %(version)s")(command_line)


def main() -> None:
    """Run the command line named by `sys.argv` and leave with its exit code."""
    try:
        command_line(prog_name="roundoff")
    finally:
        silence_stdout_without_reader()
