"""`roundoff run`: watch a training script, and explain it when it breaks."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import (
    PATH,
    Bytes,
    ScriptOptions,
    Share,
    fills,
    json_option,
    log_to_option,
    name_option,
    no_data_option,
    repeatable_options,
    runs_option,
    script_arguments,
)
from roundoff.cli.terminal import DiagnosisSignals, ExitCode, ScriptEnding, log_to, warn
from roundoff.progress import waiting

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis
    from roundoff.replay.investigator import OnAnomaly
    from roundoff.runs import Ending, JsonValue
    from roundoff.watch.process.supervise import ProcessGuard
    from roundoff.watch.settings import WatchSettings
    from roundoff.watch.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(ScriptOptions):
    """The options of `roundoff run`."""

    example = "roundoff run train.py --epochs 3"

    name: str | None
    runs: Path
    budget: float
    every_step: bool
    on_anomaly: OnAnomaly
    snapshot_memory: int | None
    kept_batches: int
    no_data: bool
    probe_seconds: float
    hang_after: float | None
    tensorboard: Path | None
    log_to: tuple[str, ...]
    ops: bool
    sync: bool
    valgrind: bool
    fail_on: Literal["error", "warning"] | None

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
            stores_data=not self.no_data,
            probe_seconds=self.probe_seconds,
            tensorboard=self.tensorboard,
            ops=self.ops,
        )

    def exit_code(self, of_script: int, diagnosis: Diagnosis | None) -> int:
        """Return the script's own code; if that is 0 and `--fail-on` was given, the one for what was found.

        Args:
            of_script: the code of the script.
            diagnosis: None if there is none, because the run could not be diagnosed.
        """
        if of_script or self.fail_on is None:
            return of_script
        from roundoff.runs import Severity

        grave = {Severity.ERROR} if self.fail_on == "error" else {Severity.ERROR, Severity.WARNING}
        if diagnosis is not None and any(finding.severity in grave for finding in diagnosis.findings):
            return ExitCode.FOUND
        is_known = diagnosis is not None and diagnosis.is_complete and diagnosis.coverage.watched == "complete"
        return ExitCode.CLEAN if is_known else ExitCode.COULD_NOT_LOOK


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
@click.option(
    "--snapshot-memory",
    type=Bytes(),
    help="Maximum memory for snapshots and replays. Default: a quarter of the free memory.",
)
@click.option(
    "--kept-batches",
    default=2,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Save a few samples of the first N batches for the report (0: none).",
)
@no_data_option
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
@log_to_option
@click.option("--ops", is_flag=True, help="Log every op, to name the one that crashes or hangs (slower).")
@click.option("--sync", is_flag=True, help="Run device ops synchronously; prints the environment variables it sets.")
@click.option("--valgrind", is_flag=True, help="Run under valgrind and report leaks by native frame (very slow).")
@repeatable_options
@json_option("Print the findings as JSON, on the last line of stdout.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    help="Exit with 1 if such a finding (or a graver one) was made, and with 2 if not everything could be watched, "
    "although the script exits with 0. For continuous integration.",
)
@script_arguments()
@fills(RunOptions)
def run_command(options: RunOptions) -> None:
    """Run SCRIPT unmodified and watch it; when training breaks, report which op of which layer at which step, and why.

    The script behaves as it does without roundoff: same arguments, same output, same numbers, same exit code, whatever
    was found. The run folder is kept for `roundoff diagnose`.
    """
    from roundoff.watch.process.supervise import supervise

    began = time.perf_counter()
    if options.sync:
        _run_synchronously()
    if options.valgrind:
        sys.exit(_run_under_valgrind(options))

    code_for_findings = 0

    def report_ending(folder: Path, rank: int, _: Ending) -> None:
        """Report why a process died that cannot report it itself, or hangs."""
        nonlocal code_for_findings
        if rank == 0:
            folder = _move_to_runs(folder, options)
            code_for_findings = options.exit_code(0, _diagnose(folder, options))

    code = supervise(
        lambda guard: _train(options, guard, began=began),
        hang_after=options.hang_after,
        on_hang=options.on_hang,
        on_ending=report_ending,
    )
    sys.exit(code or code_for_findings)


def _train(options: RunOptions, guard: ProcessGuard, *, began: float) -> int:
    """Run the script under a watch, print what was found, and return the exit code; `began` is when we began."""
    seconds_of_torch = _import_torch()
    from roundoff.errors import RunFolderError
    from roundoff.record.process_info import world_size
    from roundoff.record.script import arguments_at_exit, folder_for, run_script, waiting_folder
    from roundoff.switches import switches_in_environment, switching
    from roundoff.watch.process.op_notes import noting_ops
    from roundoff.watch.watching import start_watching

    script, settings = options.script(), options.watch_settings()
    switched_on = switching(switches_in_environment())
    facts: dict[str, JsonValue] = {
        "deterministic": options.deterministic,
        "repeat_batch": options.repeat_batch,
        "sync": options.sync,
    }
    started_in, base = Path.cwd(), options.runs.absolute()  # the script may change the working directory
    hidden = waiting_folder(base)
    try:
        watch = start_watching(
            to=hidden or (lambda: folder_for(script, name=options.name, base=base)),
            settings=settings,
            command=script.command,
            seed=options.seed,
            facts=facts,
            guard=guard,
        )
    except RunFolderError as error:
        if not isinstance(error.__cause__, OSError | MemoryError):
            raise
        warn(f"the training runs unwatched: {error}")
        with switched_on, options.repeating():
            return options.exit_code(run_script(script), None)
    if hidden is not None:
        watch.choose_folder = lambda: folder_for(script, name=options.name, base=base)
        watch.on_move = guard.move_to
    process = os.getpid()
    noting = noting_ops(guard.flight) if settings.ops else nullcontext()
    ending, signals = ScriptEnding(), DiagnosisSignals()

    def note_exception(error: BaseException) -> None:
        ending.note(error)
        watch.note_exception(error)

    code, diagnosis = None, None
    watch.count_start(began, of_script=seconds_of_torch)
    try:
        with switched_on, watch.running(), options.repeating(), noting:
            code = run_script(script, on_error=note_exception)
            watch.training_failed = code != 0
            arguments_at_exit(script)
            if os.getpid() == process:  # from now on a signal is meant for us, not for a handler of the script
                guard.script_ended()
                signals.take(of_several_ranks=world_size() > 1)
        if os.getpid() != process:
            return code  # a child that the script forked and that ran to the end of the script
        if watch.rank == 0 and not guard.is_reported:
            with _in_folder(started_in):
                folder = watch.folder if options.runs.is_absolute() else Path(os.path.relpath(watch.folder))
                diagnosis = _report(watch, folder, options)
    except KeyboardInterrupt:
        if code is None:
            raise
        signals.ignore()
        folder = watch.folder if options.runs.is_absolute() else options.runs / watch.folder.name
        warn(f"interrupted; what was seen is kept in {folder}")
    guard.close()
    signals.give_back()
    return options.exit_code(code, diagnosis) if watch.rank == 0 else code


def _import_torch() -> float:
    """Import torch, as the script will, and return how long that took."""
    began = time.perf_counter()
    importlib.import_module("torch")
    return time.perf_counter() - began


def _move_to_runs(folder: Path, options: RunOptions) -> Path:
    """Move the run of a process that died before its training began to where runs belong; return where it is."""
    from roundoff.errors import RoundoffError
    from roundoff.record.script import folder_for, is_waiting

    with suppress(OSError, RoundoffError):
        if is_waiting(folder):
            own = folder_for(options.script(), name=options.name, base=options.runs)
            folder.rename(own)
            return own
    return folder


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Work in a folder inside the block, as paths on the command line mean it; nothing if it is gone."""
    before: str | None = None
    with suppress(OSError):
        before = os.getcwd()
        os.chdir(folder)
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                os.chdir(before)


def _report(watch: Watch, folder: Path, options: RunOptions) -> Diagnosis | None:
    """Diagnose the run that has ended and print the verdict."""
    from roundoff.errors import RoundoffError
    from roundoff.record.process_info import local_ranks
    from roundoff.runs import Run
    from roundoff.watch.process.child_monitor import wait_for_endings

    for complaint in watch.complaints:
        warn(complaint)
    with suppress(RoundoffError, OSError, MemoryError):
        others = {*Run.open(folder).ranks, *local_ranks()} - {watch.rank}  # one that is late has left no files yet
        wait_for_endings(folder, ranks=others)  # what they saw is part of the run
    return _diagnose(folder, options, watch=watch)


def _diagnose(
    folder: Path, options: RunOptions, *, watch: Watch | None = None, watched: str | None = None
) -> Diagnosis | None:
    """Diagnose a run and print the verdict; None if that failed, which one line on stderr reports.

    The training has ended and must not fail because of what is found, or not found out, about it.
    """
    from roundoff.diagnose import diagnose_and_save
    from roundoff.report import verdict_screen
    from roundoff.runs import Run

    try:
        run = Run.open(folder)
        with waiting("diagnosing"):
            diagnosis = diagnose_and_save(run, code_is_at_hand=True) if watch is None else watch.diagnosis()
        facts: dict[str, JsonValue] = {}
        if watch is not None:
            watched = watch.watched_text(folder)
            facts = {"steps": watch.num_steps, "seconds": watch.seconds, "cost": watch.cost}
        log_to(run, options.log_to)
        if options.as_json:
            findings = [finding.to_object() for finding in diagnosis.findings]
            echo_json("run", {"run": str(folder), **facts, **diagnosis.coverage.to_object(), "findings": findings})
        else:
            click.echo(verdict_screen(run, diagnosis, sys.stderr, watched=watched), err=True, color=True)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        warn(f"the run could not be diagnosed, so nothing is known about it: {reason}")
        return None
    return diagnosis


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
    return options.exit_code(code, _diagnose(folder, options, watched=str(folder)))


def _run_synchronously() -> None:
    """Set the environment variables of synchronous mode before anything reads them, and print them."""
    from roundoff.watch.process.native_debugging import set_synchronous

    warn(f"synchronous mode: {' '.join(set_synchronous())}")
