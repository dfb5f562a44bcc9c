"""`roundoff run`: a training script under watch, and one sentence when it breaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from roundoff.cli.console.options import Bytes, Share
from roundoff.cli.console.screen import can_draw, columns, waiting

if TYPE_CHECKING:
    from roundoff.runs import JsonValue
    from roundoff.runs.records.info import Ending
    from roundoff.watch.process.process_guard import ProcessGuard
    from roundoff.watch.session import Watch
    from roundoff.watch.settings import WatchSettings


@click.command(
    name="run",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff run train.py --epochs 3",
)
@click.option("--name", help="Name of the run; by default that of the script, numbered.")
@click.option(
    "--runs", "base", default="runs", show_default=True, type=click.Path(path_type=Path), help="Folder of runs."
)
@click.option("--budget", default="2%", show_default=True, type=Share(), help="What watching may cost.")
@click.option("--every-step", is_flag=True, help="Measure every step, whatever it costs.")
@click.option(
    "--on-anomaly",
    default="report",
    show_default=True,
    type=click.Choice(["report", "stop", "skip"]),
    help="report: find the cause and go on; stop: and end the training; skip: and undo the step, as if the batch had "
    "never come.",
)
@click.option(
    "--snapshot-memory", default="2GB", show_default=True, type=Bytes(), help="The most memory for snapshots."
)
@click.option(
    "--kept-batches",
    default=2,
    show_default=True,
    type=click.IntRange(min=0),
    help="Of so many first batches a few samples are kept, for the page of the run; 0 keeps none.",
)
@click.option(
    "--probe-seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="How long experiments on the last step may take when the script has ended.",
)
@click.option(
    "--hang-after", type=click.FloatRange(min=1), metavar="SECONDS", help="Without progress for so long it hangs."
)
@click.option(
    "--tensorboard",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write scalars and histograms for TensorBoard, too.",
)
@click.option("--ops", is_flag=True, help="Note every op, to name the one that crashed or hung; costs more.")
@click.option("--sync", is_flag=True, help="Run devices one op at a time; says which switches it sets.")
@click.option("--valgrind", is_flag=True, help="Run under memcheck and sum up leaks by native frame. Very slow.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Set every random generator before the script starts.")
@click.option("--deterministic", is_flag=True, help="Ask torch for deterministic kernels.")
@click.option("--repeat-batch", is_flag=True, help="No shuffling, and the first batch again and again.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, on the last line of stdout.")
@click.option("--exit-zero", is_flag=True, help="End with the script's own code, whatever was found.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run_command(
    name: str | None,
    base: Path,
    budget: float,
    every_step: bool,
    on_anomaly: str,
    snapshot_memory: int,
    kept_batches: int,
    probe_seconds: float,
    hang_after: float | None,
    tensorboard: Path | None,
    ops: bool,
    sync: bool,
    valgrind: bool,
    seed: int | None,
    deterministic: bool,
    repeat_batch: bool,
    as_json: bool,
    exit_zero: bool,
    is_module: bool,
    words: tuple[str, ...],
) -> None:
    """Run SCRIPT unchanged and watch it; when training breaks, say which op of which layer at which step, and why.

    The script behaves as without us: same arguments, same output, same numbers, and its own exit code if that is
    not 0. Else ends with 1 if something was found. What was seen is kept in a run folder for `roundoff diagnose`.
    """
    from roundoff.watch.process.supervise import supervise

    options = _Options(
        words=words,
        is_module=is_module,
        name=name,
        base=base,
        seed=seed,
        deterministic=deterministic,
        repeat_batch=repeat_batch,
        sync=sync,
        as_json=as_json,
        exit_zero=exit_zero,
    )
    if sync:
        _run_synchronously()
    if valgrind:
        sys.exit(_run_under_memcheck(options))

    def train(guard: ProcessGuard) -> int:
        from roundoff.watch.settings import WatchSettings

        settings = WatchSettings(
            budget=budget,
            every_step=every_step,
            on_anomaly=on_anomaly,  # type: ignore[arg-type]
            snapshot_bytes=snapshot_memory,
            kept_batches=kept_batches,
            probe_seconds=probe_seconds,
            tensorboard=tensorboard,
            ops=ops,
        )
        return _train(options, settings, guard)

    def tell_of_ending(folder: Path, rank: int, _: Ending) -> None:
        """Tell why a process ended that can no longer do so itself, or hangs."""
        if rank == 0:
            _diagnose(folder, facts={}, watched=None, as_json=as_json)

    on_hang: Literal["report", "stop"] = "stop" if on_anomaly == "stop" else "report"
    sys.exit(supervise(train, hang_after=hang_after, on_hang=on_hang, on_ending=tell_of_ending))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the user asked for, but for how to watch."""

    words: tuple[str, ...]
    is_module: bool
    name: str | None
    base: Path
    seed: int | None
    deterministic: bool
    repeat_batch: bool
    sync: bool
    as_json: bool
    exit_zero: bool

    def exit_code(self, of_script: int, found: int) -> int:
        """Return the script's own code, or else the one for what was found."""
        return of_script or (0 if self.exit_zero else found)


def _train(options: _Options, settings: WatchSettings, guard: ProcessGuard) -> int:
    """Run the script under a watch, tell what was found, and return the exit code."""
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import folder_for, parse_script_command, run_script
    from roundoff.switches import switched, switches_in_environment
    from roundoff.watch.process.op_notes import noting_ops
    from roundoff.watch.watching import start_watching

    script = parse_script_command(
        options.words, is_module=options.is_module, example="roundoff run train.py --epochs 3"
    )
    script.check()
    switching = switched(switches_in_environment())
    repeating = {"deterministic": options.deterministic, "repeat_batch": options.repeat_batch}
    watch = start_watching(
        to=lambda: folder_for(script, name=options.name, base=options.base),
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
        return code  # a child that the script forked and let run to its end
    found = _tell(watch, as_json=options.as_json)
    guard.close()
    return options.exit_code(code, found)


def _tell(watch: Watch, *, as_json: bool) -> int:
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
    wait_for_endings(watch.folder, ranks=others)  # what they saw is a part of the run
    facts = {"steps": watch.num_steps, "seconds": watch.seconds, "cost": watch.cost}
    watched = watched_text(num_steps=watch.num_steps, seconds=watch.seconds, cost=watch.cost)
    return _diagnose(watch.folder, facts=facts, watched=f"{watched}; {watch.folder}", as_json=as_json)


def _diagnose(folder: Path, *, facts: Mapping[str, JsonValue], watched: str | None, as_json: bool) -> int:
    from roundoff.cli.curves import curve_lines
    from roundoff.cli.diagnose import exit_code
    from roundoff.diagnose import diagnose_run
    from roundoff.report import findings_text, next_commands, saved_line
    from roundoff.runs import Run, to_json

    run = Run.open(folder)
    with waiting("looking at what was seen"):
        diagnosis = diagnose_run(run)
    run.write_findings(diagnosis.findings)
    if as_json:
        findings = [finding.to_object() for finding in diagnosis.findings]
        click.echo(to_json({"run": str(folder), **facts, "findings": findings}))
    else:
        saved, following = saved_line(run, diagnosis), next_commands(run, diagnosis)
        curves = curve_lines(run.metrics(), indent="  ") if not diagnosis.is_clean and can_draw(sys.stderr) else []
        text = findings_text(
            diagnosis.findings,
            saved=saved,
            next_commands=following,
            watched="\n".join([*curves, *([watched] if watched else [])]) or None,
            width=columns(),
        )
        click.echo(text, err=True)
    return exit_code(diagnosis)


def _run_under_memcheck(options: _Options) -> int:
    """Run the script under valgrind instead of the watch, tell of its memory, and return the exit code."""
    from roundoff.record.process_info import describe_process
    from roundoff.record.script import folder_for, parse_script_command
    from roundoff.runs import RunWriter, memcheck_path
    from roundoff.watch.process.native_debugging import memcheck_command, run_memcheck

    example = "roundoff run --valgrind train.py --epochs 1"
    script = parse_script_command(options.words, is_module=options.is_module, example=example)
    script.check()
    memcheck_command(script.command, xml=Path())  # says now if valgrind is missing
    folder = folder_for(script, name=options.name, base=options.base)
    info = describe_process(seed=None, settings={"memcheck": True}, command=script.command)
    writer = RunWriter.create(folder, info)
    code = run_memcheck(script.command, xml=memcheck_path(folder))
    writer.close(status="failed" if code else "finished")
    return options.exit_code(code, _diagnose(folder, facts={}, watched=str(folder), as_json=options.as_json))


def _run_synchronously() -> None:
    """Set the switches of synchronous mode, before anything reads them, and say which."""
    from roundoff.watch.process.native_debugging import set_synchronous

    click.echo(f"roundoff: synchronous mode: {' '.join(set_synchronous())}", err=True)
