"""`roundoff record`: run a training script and keep what some of its steps computed."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.exit_codes import COULD_NOT_LOOK
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.record import Recording


@click.command(
    name="record",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff record --steps 0-3 --reference fp64 train.py --epochs 1",
)
@click.option("--steps", default="0-1", show_default=True, help="Which steps, counted from 0: 0-3, 7, 0-3,10 or all.")
@click.option("--level", default="summary", show_default=True, help="summary: numbers; tensors: whole tensors as well.")
@click.option("--sites", multiple=True, metavar="PATTERN", help="Only these sites, 'blocks.*'. May be repeated.")
@click.option(
    "--ops", multiple=True, metavar="PATTERN", help="Only these ops, 'aten.*mm' or 'softmax'. May be repeated."
)
@click.option(
    "--phases", multiple=True, metavar="PHASE", help="Of forward, backward, optimizer, eval. May be repeated."
)
@click.option("--inputs", is_flag=True, help="Also what goes into each op.")
@click.option("--histograms", is_flag=True, help="Also how the magnitudes of each result are spread, for the page.")
@click.option("--reference", metavar="fp64|cpu", help="Run each op again this way and keep the error it introduced.")
@click.option("--stacks", is_flag=True, help="Keep the source line of each op.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Set every random generator before the script starts.")
@click.option("--deterministic", is_flag=True, help="Ask torch for deterministic kernels.")
@click.option("--repeat-batch", is_flag=True, help="No shuffling, and the first batch again and again.")
@click.option("--name", help="Name of the run; by default that of the script, numbered.")
@click.option(
    "--runs", "base", default="runs", show_default=True, type=click.Path(path_type=Path), help="Folder of runs."
)
@click.option("--strict", is_flag=True, help="Fail if the recording cannot be written, instead of warning.")
@click.option("--json", "as_json", is_flag=True, help="Say where the run is as JSON, on the last line of stdout.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def record_command(
    steps: str,
    level: str,
    sites: tuple[str, ...],
    ops: tuple[str, ...],
    phases: tuple[str, ...],
    inputs: bool,
    histograms: bool,
    reference: str | None,
    stacks: bool,
    seed: int | None,
    deterministic: bool,
    repeat_batch: bool,
    name: str | None,
    base: Path,
    strict: bool,
    as_json: bool,
    is_module: bool,
    words: tuple[str, ...],
) -> None:
    """Run SCRIPT unchanged and record what the chosen steps computed: every op of forward, backward and optimizer.

    The script behaves as without us: same arguments, same output, same numbers, and its own exit code if that is
    not 0. Ends with 2 if nothing could be recorded.
    """
    from roundoff.errors import RoundoffError
    from roundoff.record.event_selection import parse_steps
    from roundoff.record.recording import start_recording
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import folder_for, parse_script_command, run_script
    from roundoff.switches import switched, switches_in_environment

    script = parse_script_command(words, is_module=is_module, example="roundoff record --steps 0-3 train.py --lr 0.1")
    script.check()
    switching = switched(switches_in_environment())
    session = start_recording(
        None,
        to=lambda: folder_for(script, name=name, base=base),
        steps=parse_steps(steps),
        sites=sites or None,
        ops=ops or None,
        phases=phases or None,
        level=level,  # type: ignore[arg-type]  # checked there, with a sentence
        inputs=inputs,
        histograms=histograms,
        reference=reference,  # type: ignore[arg-type]
        stacks=stacks,
        strict=strict,
        command=script.command,
        seed=seed,
        settings={"deterministic": deterministic, "repeat_batch": repeat_batch},
    )
    began, process = time.perf_counter(), os.getpid()
    repeating = repeatable(seed=seed, deterministic=deterministic, repeat_batch=repeat_batch)
    with switching, session.running(), repeating:
        code = run_script(script, raising=(RoundoffError,) if strict else ())
        session.training_failed = code != 0
    if os.getpid() != process:
        sys.exit(code)  # a child that the script forked and let run to its end
    if session.num_events and not session.saw_training:
        session.complaints.append("no training step was seen: the events are those of ops outside of any.")
    _close(session, time.perf_counter() - began, as_json=as_json)
    sys.exit(code or (0 if session.num_events and session.saw_training else COULD_NOT_LOOK))


def _close(session: Recording, seconds: float, *, as_json: bool) -> None:
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
