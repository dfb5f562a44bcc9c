"""`roundoff record`: run a training script and record what some of its steps compute."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import (
    SelectionOptions,
    fills,
    json_option,
    name_option,
    no_data_option,
    repeatable_options,
    runs_option,
    script_arguments,
    selection_options,
)
from roundoff.cli.terminal import ExitCode, ScriptEnding, echo, warn
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.record import Recording
    from roundoff.record.script import Script
    from roundoff.runs import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions(SelectionOptions):
    """The options of `roundoff record`."""

    example = "roundoff record --steps 0-3 train.py --lr 0.1"

    level: str
    inputs: bool
    histograms: bool
    reference: str | None
    stacks: bool
    name: str | None
    runs: Path
    strict: bool
    no_data: bool


@click.command(
    name="record",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff record --steps 0-3 --reference fp64 train.py --epochs 1",
)
@selection_options(steps="0-1", steps_help="Steps to record, from 0 on: 0-3, 7, 0-3,10 or all.")
@click.option("--level", default="summary", show_default=True, help="summary: statistics; tensors: also whole tensors.")
@click.option("--inputs/--no-inputs", default=True, help="Record the inputs of each op, too.  [default: inputs]")
@click.option("--histograms", is_flag=True, help="Also record histograms of magnitudes, for the report.")
@click.option("--reference", metavar="fp64|cpu", help="Also run each op this way and record the error it introduces.")
@click.option("--stacks/--no-stacks", default=True, help="Record the source line of each op.  [default: stacks]")
@repeatable_options
@name_option("run", default="the script's name, numbered")
@runs_option()
@click.option("--strict", is_flag=True, help="Fail, instead of warning, if nothing can be recorded or written.")
@no_data_option
@json_option("Print the path of the run as JSON, on the last line of stdout.")
@script_arguments()
@fills(RecordOptions)
def record_command(options: RecordOptions) -> None:
    """Run SCRIPT unmodified and record what the chosen steps compute: every op of forward, backward and optimizer.

    The script behaves as it does without roundoff: same arguments, same output, same numbers, same exit code. With
    --strict, exits with 2 if the script exits with 0 and nothing could be recorded.
    """
    from roundoff.errors import RoundoffError, UsageError
    from roundoff.record.script import arguments_at_exit, run_script
    from roundoff.switches import switches_in_environment, switching

    if options.no_data and options.level == "tensors":
        raise UsageError.explain("--no-data and --level tensors exclude each other.", fix="leave one of them out.")
    script = options.script()
    switched_on = switching(switches_in_environment())
    session = _start_session(options, script)
    ending = ScriptEnding()
    began, process = time.perf_counter(), os.getpid()
    with switched_on, session.running(), options.repeating():
        code = run_script(script, raising=(RoundoffError,) if options.strict else (), on_error=ending.note)
        arguments_at_exit(script)
        session.training_failed = code != 0
    if os.getpid() != process:
        sys.exit(code)  # a child that the script forked and that ran to the end of the script
    if session.num_events and not session.saw_training:
        session.complaints.append("no training step was seen; the recorded ops ran outside of any step.")
    # as the user names it; the script may have changed the working directory since
    folder = session.folder if options.runs.is_absolute() else options.runs / session.folder.name
    _report(session, folder, time.perf_counter() - began, as_json=options.as_json)
    is_recorded = session.num_events and session.saw_training
    sys.exit(code if is_recorded or not options.strict else code or ExitCode.COULD_NOT_LOOK)


def _start_session(options: RecordOptions, script: Script) -> Recording:
    from roundoff.record.event_selection import RecordingSettings
    from roundoff.record.recording_block import start_recording
    from roundoff.record.script import folder_for, waiting_folder

    settings = RecordingSettings(
        selection=options.selection(),
        level=options.level,  # type: ignore[arg-type]  # checked by start_recording, with a better message
        inputs=options.inputs,
        histograms=options.histograms,
        reference=options.reference,  # type: ignore[arg-type]
        stacks=options.stacks,
        strict=options.strict,
        stores_data=not options.no_data,
    )
    base = options.runs.absolute()  # the script may change the working directory
    hidden = waiting_folder(base)
    session = start_recording(
        to=hidden or (lambda: folder_for(script, name=options.name, base=base)),
        settings=settings,
        command=script.command,
        seed=options.seed,
        facts={"deterministic": options.deterministic, "repeat_batch": options.repeat_batch, **_mesh()},
    )
    if hidden is not None:
        session.choose_folder = lambda: folder_for(script, name=options.name, base=base)
    return session


def _mesh() -> dict[str, str]:
    """Return the mesh of ranks, where `roundoff layouts` or the user's launcher names it."""
    mesh = os.environ.get("ROUNDOFF_MESH", "")
    return {"mesh": mesh} if mesh else {}


def _report(session: Recording, folder: Path, seconds: float, *, as_json: bool) -> None:
    """Print where the run is, on rank 0."""
    from roundoff.record.process_info import rank

    for complaint in session.complaints:
        warn(complaint)
    if rank() != 0:
        return
    if as_json:
        facts: dict[str, JsonValue] = {
            "steps": session.num_recorded,
            "events": session.num_events,
            "complaints": session.complaints,
        }
        echo_json("record", {"run": str(folder), **facts})
        return
    steps = plural(session.num_recorded, "step")
    echo(f"recorded {steps}, {session.num_events} events in {seconds:.1f} s to {folder}", err=True)
    if session.num_events:
        echo(f"next   roundoff runs show {folder} --step {session.first_recorded}", err=True)
