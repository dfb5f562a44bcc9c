"""`roundoff check-device`: is every op of a training's own step right on its device?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import (
    PATH,
    SelectionOptions,
    fills,
    json_option,
    repeatable_options,
    script_arguments,
    selection_options,
)
from roundoff.cli.terminal import echo, exit_code_of, warn
from roundoff.words import join_words, plural, text_table

if TYPE_CHECKING:
    from roundoff.record.device_check import CheckedOp, DeviceChecker

_LEFT = ("op", "arguments", "site", "phase", "note")
_MAX_NAMED_CHANNELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckDeviceOptions(SelectionOptions):
    """The options of `roundoff check-device`."""

    example = "roundoff check-device train.py --device cuda"

    top: int
    export: Path | None


@click.command(
    name="check-device",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff check-device --export repros train.py --device cuda",
)
@selection_options(steps="0", steps_help="Steps to check, from 0 on: 0, 0-3 or 0,10.")
@repeatable_options
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="Good ops to list as well.")
@click.option("--export", type=PATH, metavar="DIR", help="Write a script into DIR for each op to report.")
@json_option("Print what was found as JSON, on the last line of stdout.")
@script_arguments()
@fills(CheckDeviceOptions)
def check_device_command(options: CheckDeviceOptions) -> None:
    """Run SCRIPT until the chosen steps are over, and check each op that it runs on a device.

    Each op is run on the same inputs on the device twice, on the CPU in the same format, and in fp64. An op is to be
    reported if its error is far larger than its format allows and than the CPU's, or if its two results differ. Errors
    are those that the op itself introduces, in units of the last place (ulps) of the numbers that it adds up.

    Exits with 1 if there is an op to report, with 2 if nothing ran on a device.
    """
    from roundoff.errors import UsageError
    from roundoff.record.device_check import checking_device
    from roundoff.record.script import run_script

    script, selection = options.script(), options.selection()
    if selection.steps is None:
        raise UsageError.explain("Not every step can be checked.", why="it takes long.", fix="--steps 0-3")
    export = options.export if options.export is None else options.export.absolute()
    if export is not None and export.exists() and (not export.is_dir() or any(export.iterdir())):
        raise UsageError.explain(f"'{options.export}' is not an empty folder.", fix="name a new one.")
    with checking_device(selection) as checker, options.repeating():
        code = run_script(script)
        if code:
            raise UsageError.explain(
                "The script ended before its step was checked.",
                why=f"it exited with {code}.",
                fix="run it alone first.",
            )
    _check_complete(checker)
    scripts = [] if export is None else _export(checker, export)
    if options.as_json:
        echo_json("check-device", _answer(checker, scripts))
    else:
        echo(_text(checker, options.top, scripts))
    sys.exit(exit_code_of(any(op.is_reported for op in checker.ops)))


def _check_complete(checker: DeviceChecker) -> None:
    from roundoff.errors import UsageError

    if checker.ops:
        return
    if not checker.steps:
        why = "the script ended before the chosen steps; a step ends where the one after it begins, or with the script."
    elif checker.num_on_cpu:
        why = f"all {checker.num_on_cpu} ops that could be checked ran on the CPU."
    else:
        why = f"{'; '.join(checker.filter.complaints()) or 'the chosen steps have no op that can be checked'}."
    raise UsageError.explain(
        "No op was checked.", why=why, fix="train on the device: give the script its option for it."
    )


def _export(checker: DeviceChecker, folder: Path) -> list[Path]:
    """Write a script for each op to report; those that cannot be written are named on stderr."""
    from roundoff.errors import ReplayError
    from roundoff.files import make_folder
    from roundoff.replay.saved.export import export_check

    make_folder(folder)
    written: list[Path] = []
    for number, op in enumerate(op for op in checker.ops if op.is_reported):
        try:
            path, *_ = export_check(op, to=folder / f"{number:02d}-{op.place.op.replace('.', '_')}.py")
            written.append(path)
        except ReplayError as error:
            warn(str(error))
    return written


def _answer(checker: DeviceChecker, scripts: Sequence[Path]) -> dict[str, Any]:
    return {
        "steps": checker.steps,
        "reported": [op.to_object() for op in checker.ops if op.is_reported],
        "good": [op.to_object() for op in checker.ops if not op.is_reported],
        "not_checked": checker.not_judged,
        "on_cpu": checker.num_on_cpu,
        "scripts": [str(path) for path in scripts],
    }


def _text(checker: DeviceChecker, top: int, scripts: Sequence[Path]) -> str:
    reported = [op for op in checker.ops if op.is_reported]
    good = [op for op in checker.ops if not op.is_reported]
    devices = join_words(sorted({op.device for op in checker.ops}))
    num_calls = plural(sum(op.num_calls for op in checker.ops), "call")
    kinds = plural(len(checker.ops), "combination")
    lines = [f"checked {num_calls} on {devices}, {kinds} of op, formats and shapes, in {_steps_text(checker.steps)}"]
    header = ("op", "arguments", "site", "phase", "ulps", "CPU", "note")
    for title, ops in (
        (f"report {plural(len(reported), 'of them', 'of them')}:" if reported else "nothing to report.", reported),
        ("largest errors among the good ones:", good[:top]),
    ):
        if ops or title.startswith("nothing"):
            lines += ["", title]
        if ops:
            lines.append(text_table([header, *map(_row, ops)], left=_LEFT, ruled=sys.stdout.isatty()))
    if checker.not_judged:
        names = [f"{name} ({why})" for name, why in sorted(checker.not_judged.items())]
        lines += ["", f"not checked: {'; '.join(names)}"]
    if scripts:
        lines += ["", *(f"script  {path}" for path in scripts)]
    elif reported:
        lines += ["", "next    the same with --export DIR, for a script of each op to send to the device's makers"]
    return "\n".join(lines)


def _row(op: CheckedOp) -> tuple[str, ...]:
    notes = []
    if op.is_wrong and op.channels:
        names = ", ".join(map(str, op.channels[:_MAX_NAMED_CHANNELS]))
        more = ", ..." if len(op.channels) > _MAX_NAMED_CHANNELS else ""
        notes.append(f"only channel {names}{more} of {op.num_channels}")
    if not op.is_repeatable:
        notes.append("two runs differ")
    cpu = "-" if op.cpu_ulps is None else f"{op.cpu_ulps:.2g}"
    place = op.place
    return (op.overload, op.arguments, place.site, place.phase, f"{op.max_ulps:.3g}", cpu, "; ".join(notes))


def _steps_text(steps: Sequence[int]) -> str:
    return f"{plural(len(steps), 'step')} ({', '.join(map(str, steps))})"
