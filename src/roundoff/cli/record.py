"""`roundoff record`: run a training script and record what some of its steps compute."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.exit_codes import ExitCode
from roundoff.cli.console.options import (
    fills,
    json_option,
    name_option,
    repeatable_options,
    runs_option,
    script_arguments,
)
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.record import Recording
    from roundoff.record.script import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options of `roundoff record`."""

    words: tuple[str, ...]
    is_module: bool
    steps: str
    level: str
    sites: tuple[str, ...]
    ops: tuple[str, ...]
    phases: tuple[str, ...]
    inputs: bool
    histograms: bool
    reference: str | None
    stacks: bool
    seed: int | None
    deterministic: bool
    repeat_batch: bool
    name: str | None
    runs: Path
    strict: bool
    as_json: bool

    def script(self) -> Script:
        """Return the script, which exists."""
        from roundoff.record.script import parse_script_command

        example = "roundoff record --steps 0-3 train.py --lr 0.1"
        script = parse_script_command(self.words, is_module=self.is_module, example=example)
        script.check()
        return script


@click.command(
    name="record",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff record --steps 0-3 --reference fp64 train.py --epochs 1",
)
@click.option("--steps", default="0-1", show_default=True, help="Steps to record, from 0 on: 0-3, 7, 0-3,10 or all.")
@click.option("--level", default="summary", show_default=True, help="summary: statistics; tensors: also whole tensors.")
@click.option("--sites", multiple=True, metavar="PATTERN", help="Only these sites, such as 'blocks.*'. Repeatable.")
@click.option(
    "--ops", multiple=True, metavar="PATTERN", help="Only these ops, such as 'aten.*mm' or 'softmax'. Repeatable."
)
@click.option("--phases", multiple=True, metavar="PHASE", help="Only forward, backward, optimizer or eval. Repeatable.")
@click.option("--inputs", is_flag=True, help="Also record the inputs of each op.")
@click.option("--histograms", is_flag=True, help="Also record histograms of magnitudes, for the report.")
@click.option("--reference", metavar="fp64|cpu", help="Also run each op this way and record the error it introduces.")
@click.option("--stacks", is_flag=True, help="Record the source line of each op.")
@repeatable_options
@name_option("run", default="the script's name, numbered")
@runs_option()
@click.option("--strict", is_flag=True, help="Fail instead of warning if the recording cannot be written.")
@json_option("Print the path of the run as JSON, on the last line of stdout.")
@script_arguments()
@fills(RecordOptions)
def record_command(options: RecordOptions) -> None:
    """Run SCRIPT unmodified and record what the chosen steps compute: every op of forward, backward and optimizer.

    The script behaves as it does without roundoff: same arguments, same output, same numbers. Exits with the script's
    own code if that is not 0, otherwise with 2 if nothing could be recorded.
    """
    from roundoff.errors import RoundoffError
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script
    from roundoff.switches import switched, switches_in_environment

    script = options.script()
    switching = switched(switches_in_environment())
    session = _start_session(options, script)
    began, process = time.perf_counter(), os.getpid()
    repeating = repeatable(seed=options.seed, deterministic=options.deterministic, repeat_batch=options.repeat_batch)
    with switching, session.running(), repeating:
        code = run_script(script, raising=(RoundoffError,) if options.strict else ())
        session.training_failed = code != 0
    if os.getpid() != process:
        sys.exit(code)  # a child that the script forked and that ran to the end of the script
    if session.num_events and not session.saw_training:
        session.complaints.append("no training step was seen; the recorded ops ran outside of any step.")
    _report(session, time.perf_counter() - began, as_json=options.as_json)
    is_recorded = session.num_events and session.saw_training
    sys.exit(code or (ExitCode.CLEAN if is_recorded else ExitCode.COULD_NOT_LOOK))


def _start_session(options: RecordOptions, script: Script) -> Recording:
    from roundoff.record.event_selection import EventSelection, RecordingSettings, parse_steps
    from roundoff.record.recording import start_recording
    from roundoff.record.script import folder_for

    selection = EventSelection.of(
        steps=parse_steps(options.steps),
        sites=options.sites or None,
        ops=options.ops or None,
        phases=options.phases or None,
    )
    settings = RecordingSettings(
        selection=selection,
        level=options.level,  # type: ignore[arg-type]  # checked by start_recording, with a better message
        inputs=options.inputs,
        histograms=options.histograms,
        reference=options.reference,  # type: ignore[arg-type]
        stacks=options.stacks,
        strict=options.strict,
    )
    return start_recording(
        to=lambda: folder_for(script, name=options.name, base=options.runs),
        settings=settings,
        command=script.command,
        seed=options.seed,
        facts={"deterministic": options.deterministic, "repeat_batch": options.repeat_batch},
    )


def _report(session: Recording, seconds: float, *, as_json: bool) -> None:
    """Print where the run is, on rank 0."""
    from roundoff.record.process_info import rank

    for complaint in session.complaints:
        click.echo(f"roundoff: {complaint}", err=True)
    if rank() != 0:
        return
    if as_json:
        click.echo(json.dumps({
            "run": str(session.folder), "steps": session.num_recorded, "events": session.num_events,
            "complaints": session.complaints,
        }))  # fmt: skip
        return
    steps = plural(session.num_recorded, "step")
    click.echo(f"recorded {steps}, {session.num_events} events in {seconds:.1f} s to {session.folder}", err=True)
    if session.num_events:
        click.echo(f"next   roundoff runs show {session.folder} --step {session.first_recorded}", err=True)
