"""`roundoff run`: watch a training script, and explain it when it breaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from roundoff.cli.console.options import (
    PATH,
    Bytes,
    Share,
    exit_zero_option,
    fills,
    json_option,
    name_option,
    repeatable_options,
    runs_option,
    script_arguments,
)
from roundoff.cli.console.screen import can_draw, columns, waiting

if TYPE_CHECKING:
    from roundoff.record.script import Script
    from roundoff.replay.investigator import OnAnomaly
    from roundoff.runs import Ending, JsonValue
    from roundoff.watch.process.process_guard import ProcessGuard
    from roundoff.watch.settings import WatchSettings
    from roundoff.watch.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `roundoff run`."""

    words: tuple[str, ...]
    is_module: bool
    name: str | None
    runs: Path
    budget: float
    every_step: bool
    on_anomaly: OnAnomaly
    snapshot_memory: int
    kept_batches: int
    probe_seconds: float
    hang_after: float | None
    tensorboard: Path | None
    ops: bool
    sync: bool
    valgrind: bool
    seed: int | None
    deterministic: bool
    repeat_batch: bool
    as_json: bool
    exit_zero: bool

    @property
    def on_hang(self) -> Literal["report", "stop"]:
        """What to do with a run that hangs."""
        return "stop" if self.on_anomaly == "stop" else "report"

    def watch_settings(self) -> WatchSettings:
        """Return how the script is watched."""
        from roundoff.watch.settings import WatchSettings

        return WatchSettings(
            budget=self.budget,
            every_step=self.every_step,
            on_anomaly=self.on_anomaly,
            snapshot_bytes=self.snapshot_memory,
            kept_batches=self.kept_batches,
            probe_seconds=self.probe_seconds,
            tensorboard=self.tensorboard,
            ops=self.ops,
        )

    def script(self) -> Script:
        """Return the script, which exists."""
        from roundoff.record.script import parse_script_command

        script = parse_script_command(self.words, is_module=self.is_module, example="roundoff run train.py --epochs 3")
        script.check()
        return script

    def exit_code(self, of_script: int, found: int) -> int:
        """Return the script's own code, or else the one for what was found."""
        return of_script or (0 if self.exit_zero else found)


@click.command(
    name="run",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff run train.py --epochs 3",
)
@name_option("run", default="the script's name, numbered")
@runs_option()
@click.option("--budget", default="2%", show_default=True, type=Share(), help="Maximum overhead of watching.")
@click.option("--every-step", is_flag=True, help="Measure every step, regardless of the overhead.")
@click.option(
    "--on-anomaly",
    default="report",
    show_default=True,
    type=click.Choice(["report", "stop", "skip"]),
    help="report: find the cause and continue; stop: also end the training; skip: undo the step and continue with the "
    "next batch.",
)
@click.option("--snapshot-memory", default="2GB", show_default=True, type=Bytes(), help="Maximum memory for snapshots.")
@click.option(
    "--kept-batches",
    default=2,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Save a few samples of the first N batches for the report (0: none).",
)
@click.option(
    "--probe-seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Maximum time for experiments on the last step after the script has ended.",
)
@click.option(
    "--hang-after",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Treat the run as hung after SECONDS without progress.",
)
@click.option("--tensorboard", type=PATH, metavar="DIR", help="Also write scalars and histograms for TensorBoard.")
@click.option("--ops", is_flag=True, help="Log every op, to name the one that crashes or hangs (slower).")
@click.option("--sync", is_flag=True, help="Run device ops synchronously; prints the environment variables it sets.")
@click.option("--valgrind", is_flag=True, help="Run under valgrind and report leaks by native frame (very slow).")
@repeatable_options
@json_option("Print the findings as JSON, on the last line of stdout.")
@exit_zero_option("Exit with the script's own code, whatever was found.")
@script_arguments()
@fills(RunOptions)
def run_command(options: RunOptions) -> None:
    """Run SCRIPT unmodified and watch it; when training breaks, report which op of which layer at which step, and why.

    The script behaves as it does without roundoff: same arguments, same output, same numbers. Exits with the script's
    own code if that is not 0, otherwise with 1 if something was found. The run folder is kept for `roundoff diagnose`.
    """
    from roundoff.watch.process.supervise import supervise

    if options.sync:
        _run_synchronously()
    if options.valgrind:
        sys.exit(_run_under_valgrind(options))

    def report_ending(folder: Path, rank: int, _: Ending) -> None:
        """Report why a process died that cannot report it itself, or hangs."""
        if rank == 0:
            _diagnose(folder, facts={}, watched=None, as_json=options.as_json)

    code = supervise(
        lambda guard: _train(options, guard),
        hang_after=options.hang_after,
        on_hang=options.on_hang,
        on_ending=report_ending,
    )
    sys.exit(code)


def _train(options: RunOptions, guard: ProcessGuard) -> int:
    """Run the script under a watch, print what was found, and return the exit code."""
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import folder_for, run_script
    from roundoff.switches import switched, switches_in_environment
    from roundoff.watch.process.op_notes import noting_ops
    from roundoff.watch.watching import start_watching

    script, settings = options.script(), options.watch_settings()
    switching = switched(switches_in_environment())
    repeating = {"deterministic": options.deterministic, "repeat_batch": options.repeat_batch}
    watch = start_watching(
        to=lambda: folder_for(script, name=options.name, base=options.runs),
        settings=settings,
        command=script.command,
        seed=options.seed,
        facts={**repeating, "sync": options.sync},
        guard=guard,
    )
    process = os.getpid()
    noting = noting_ops(guard.flight) if settings.ops else nullcontext()
    with switching, watch.running(), repeatable(seed=options.seed, **repeating), noting:
        code = run_script(script, on_error=watch.note_exception)
        watch.training_failed = code != 0
    if os.getpid() != process:
        return code  # a child that the script forked and that ran to the end of the script
    found = _report(watch, as_json=options.as_json)
    guard.close()
    return options.exit_code(code, found)


def _report(watch: Watch, *, as_json: bool) -> int:
    """Diagnose the run that has ended, print the verdict, and return the exit code for what was found."""
    from roundoff.record.process_info import rank
    from roundoff.report import watched_text
    from roundoff.runs import Run
    from roundoff.watch.process.child_monitor import wait_for_endings

    if rank() != 0:
        return 0
    for complaint in watch.complaints:
        click.echo(f"roundoff: {complaint}", err=True)
    others = [rank for rank in Run.open(watch.folder).ranks if rank != 0]
    wait_for_endings(watch.folder, ranks=others)  # what they saw is part of the run
    facts = {"steps": watch.num_steps, "seconds": watch.seconds, "cost": watch.cost}
    watched = watched_text(num_steps=watch.num_steps, seconds=watch.seconds, cost=watch.cost)
    return _diagnose(watch.folder, facts=facts, watched=f"{watched}; {watch.folder}", as_json=as_json)


def _diagnose(folder: Path, *, facts: Mapping[str, JsonValue], watched: str | None, as_json: bool) -> int:
    """Diagnose a run, print the verdict, and return the exit code for what was found."""
    from roundoff.cli.diagnose import exit_code
    from roundoff.diagnose import diagnose_and_save
    from roundoff.report import verdict_text
    from roundoff.runs import Run, to_json

    run = Run.open(folder)
    with waiting("diagnosing"):
        diagnosis = diagnose_and_save(run)
    if as_json:
        findings = [finding.to_object() for finding in diagnosis.findings]
        click.echo(to_json({"run": str(folder), **facts, "findings": findings}))
    else:
        draws = can_draw(sys.stderr)
        click.echo(verdict_text(run, diagnosis, watched=watched, width=columns(), draws=draws), err=True)
    return exit_code(diagnosis)


def _run_under_valgrind(options: RunOptions) -> int:
    """Run the script under valgrind instead of the watch, print what it found, and return the exit code."""
    from roundoff.record.process_info import describe_process
    from roundoff.record.script import folder_for
    from roundoff.runs import RunWriter, memcheck_path
    from roundoff.watch.process.native_debugging import memcheck_command, run_memcheck

    script = options.script()
    memcheck_command(script.command, xml=Path())  # raises now if valgrind is missing
    folder = folder_for(script, name=options.name, base=options.runs)
    info = describe_process(seed=None, settings={"memcheck": True}, command=script.command)
    writer = RunWriter.create(folder, info)
    code = run_memcheck(script.command, xml=memcheck_path(folder))
    writer.close(status="failed" if code else "finished")
    found = _diagnose(folder, facts={}, watched=str(folder), as_json=options.as_json)
    return options.exit_code(code, found)


def _run_synchronously() -> None:
    """Set the environment variables of synchronous mode before anything reads them, and print them."""
    from roundoff.watch.process.native_debugging import set_synchronous

    click.echo(f"roundoff: synchronous mode: {' '.join(set_synchronous())}", err=True)
