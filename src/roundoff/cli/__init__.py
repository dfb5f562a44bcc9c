"""Arguments in, exit code out: 0 clean, 1 found something, 2 could not look."""

from __future__ import annotations

import click

from roundoff.cli.console.exit_codes import silence_stdout_without_reader
from roundoff.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "demo": LazyCommand(
        module="roundoff.cli.demo",
        attribute="demo_command",
        help="Watch a training break in fp16, learn why, and mend it.",
    ),
    "record": LazyCommand(
        module="roundoff.cli.record",
        attribute="record_command",
        help="Run a training script and keep what some of its steps computed.",
        runs_scripts=True,
    ),
    "run": LazyCommand(
        module="roundoff.cli.run",
        attribute="run_command",
        help="Watch a training script, and say why when it breaks.",
        runs_scripts=True,
    ),
    "diagnose": LazyCommand(
        module="roundoff.cli.diagnose",
        attribute="diagnose_command",
        help="Say what went wrong in a run, and what to change.",
    ),
    "compare": LazyCommand(
        module="roundoff.cli.compare",
        attribute="compare_command",
        help="Say where a run, checkpoint or curve begins to differ from its reference.",
    ),
    "report": LazyCommand(
        module="roundoff.cli.report",
        attribute="report_command",
        help="Write a page about a run that opens from disk.",
    ),
    "serve": LazyCommand(
        module="roundoff.cli.serve",
        attribute="serve_command",
        help="Show a folder of runs in a browser, live.",
    ),
    "params": LazyCommand(
        module="roundoff.cli.params",
        attribute="params_command",
        help="List what a checkpoint of any framework, or a model, is made of.",
    ),
    "convert": LazyCommand(
        module="roundoff.cli.convert",
        attribute="convert_command",
        help="Write a checkpoint of one framework as another's.",
    ),
    "replay": LazyCommand(
        module="roundoff.cli.replay",
        attribute="replay_command",
        help="Run a saved bad step again, or export its op.",
    ),
    "train": LazyCommand(
        module="roundoff.cli.train",
        attribute="train_command",
        help="Train a known model on known data, at any precision.",
    ),
    "sweep": LazyCommand(
        module="roundoff.cli.sweep",
        attribute="sweep_command",
        help="Train a table of recipes and settings, one row each.",
    ),
    "throughput": LazyCommand(
        module="roundoff.cli.throughput",
        attribute="throughput_command",
        help="Measure which workers, threads, recipe and ranks train fastest here.",
    ),
    "bisect": LazyCommand(
        module="roundoff.cli.bisect",
        attribute="bisect_command",
        help="Find the fewest sites that must be wide, or the op that is wrong.",
    ),
    "plan": LazyCommand(
        module="roundoff.cli.plan",
        attribute="plan_command",
        help="Say where precision goes, and write a recipe that trains.",
    ),
    "runs": LazyCommand(
        module="roundoff.cli.runs",
        attribute="runs_command",
        help="List recorded runs and read their steps.",
    ),
    "recipes": LazyCommand(
        module="roundoff.cli.recipes",
        attribute="recipes_command",
        help="List the ways a model can train, and when to use which.",
    ),
    "formats": LazyCommand(
        module="roundoff.cli.formats",
        attribute="formats_command",
        help="Show which numbers a format can hold.",
    ),
    "doctor": LazyCommand(
        module="roundoff.cli.doctor",
        attribute="doctor_command",
        help="Check this installation, and say what is missing for what.",
    ),
}
"""In the order of a first visit; each module is imported when its command is called."""

command_line = LazyGroup(
    COMMANDS,
    name="roundoff",
    help="Train neural networks at any numeric precision, and learn why when it goes wrong.",
    epilog="Example: roundoff record train.py",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="roundoff", message="%(prog)s %(version)s")(command_line)


def main() -> None:
    """Run the command line named by `sys.argv` and leave with its exit code."""
    try:
        command_line(prog_name="roundoff")
    finally:
        silence_stdout_without_reader()
