"""`roundoff invariant`: does the result for a sample depend on the batch that it is in?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import ScriptOptions, fills, json_option, repeatable_options, script_arguments
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.words import plural, text_table

if TYPE_CHECKING:
    from roundoff.replay.invariance import PlayedBatch, VaryingOp
    from roundoff.replay.replayed_step import ReplayedStep

_ANY_WIDTH = 10_000
"""Sentences are not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantOptions(ScriptOptions):
    """The options of `roundoff invariant`."""

    example = "roundoff invariant train.py"

    step: int
    sample: int | None
    batch_dim: int | None
    top: int


@dataclass(slots=True)
class _Found:
    """What was found out about the step, or why nothing was."""

    batches: Sequence[PlayedBatch] = ()
    sample: int = 0
    size: int = 0
    why_not: str | None = None
    error: Exception | None = None


@click.command(
    name="invariant",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff invariant --step 10 train.py --batch-size 32",
)
@click.option(
    "--step", type=click.IntRange(min=0), default=0, show_default=True, help="The step to look at, from 0 on."
)
@click.option("--sample", type=click.IntRange(min=0), help="Which sample of its batch.  [default: the middle one]")
@click.option(
    "--batch-dim", type=click.IntRange(0, 1), help="Which dimension of the inputs counts samples.  [default: found out]"
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Ops to list.")
@repeatable_options
@json_option("Print what was found as JSON, on the last line of stdout.")
@script_arguments()
@fills(InvariantOptions)
def invariant_command(options: InvariantOptions) -> None:
    """Run SCRIPT up to a step, and play its forward with the same sample in other batches.

    The sample is played alone, in half of the batch, at another place, next to other samples and with more padding, in
    eval mode. Each op's result for the sample is compared bit for bit with that in the batch as it was, and then
    replaced by it, so that every op is listed that introduces a difference, and none that inherits one.

    Exits with 1 if the bits of any result depend on the batch.
    """
    from roundoff.errors import UsageError
    from roundoff.record.script import run_script

    script, found = options.script(), _Found(why_not=f"the script ended before step {options.step} did.")
    with tempfile.TemporaryDirectory(prefix="roundoff-") as folder, options.repeating():
        code = _run(lambda: run_script(script), options, found, Path(folder) / "run")
    if found.error is not None:
        raise found.error
    if found.why_not is not None:
        why = f"it exited with {code}." if code else found.why_not
        raise UsageError.explain(f"Step {options.step} cannot be played in another batch.", why=why)
    if options.as_json:
        batches = [batch.to_object() for batch in found.batches]
        echo_json("invariant", {"step": options.step, "sample": found.sample, "size": found.size, "batches": batches})
    else:
        echo(_text(options, found))
    sys.exit(exit_code_of(any(batch.ops for batch in found.batches)))


def _run(run: Callable[[], int], options: InvariantOptions, found: _Found, folder: Path) -> int:
    """Run the script, up to the step if it comes so far, and look at the step there."""
    from roundoff.replay.invariance import played_batches
    from roundoff.replay.replayed_step import ReplayedCodeRaised
    from roundoff.watch.settings import WatchSettings
    from roundoff.watch.watching import start_watching

    def look(step: ReplayedStep | str) -> None:
        try:
            if isinstance(step, str):
                found.why_not = f"{step}."
                return
            found.sample, found.size, found.batches = played_batches(step, sample=options.sample, dim=options.batch_dim)
            found.why_not = None
        except ReplayedCodeRaised as error:
            found.why_not = f"{error}."
        except Exception as error:  # the script is being ended; the command raises it
            found.error = error

    settings = WatchSettings(
        recorded_steps=(), probe_seconds=0, every_step=True, kept_batches=0, max_replays=0, stores_data=False
    )
    watch = start_watching(to=folder, settings=settings)
    watch.at_step = (options.step, look)
    with watch.running():
        return run()


def _text(options: InvariantOptions, found: _Found) -> str:
    lines = [f"step {options.step}, sample {found.sample} of a batch of {found.size}, in eval mode"]
    rows = [("batch", "result"), *((batch.name, _result(batch)) for batch in found.batches)]
    lines += ["", text_table(rows, left=rows[0], ruled=False, width=_ANY_WIDTH)]
    by_op: dict[VaryingOp, list[str]] = {}
    for batch in found.batches:
        for op in batch.ops:
            same = next((known for known in by_op if _place(known) == _place(op)), op)
            by_op.setdefault(same, []).append(batch.name)
    if not by_op:
        return "\n".join(lines)
    header = ("op", "result", "site", "line", "difference", "times")
    table = [
        (op.op, op.result, op.site, op.source or "-", f"{op.difference:.1e}", str(len(names)))
        for op, names in list(by_op.items())[: options.top]
    ]
    lines += ["", "ops whose result for the sample depends on the batch, in the order in which they run"]
    lines.append(text_table([header, *table], left=header[:4], ruled=sys.stdout.isatty()))
    if len(by_op) > options.top:
        lines.append(f"and {len(by_op) - options.top} more: --top {len(by_op)}")
    return "\n".join(lines)


def _place(op: VaryingOp) -> tuple[str | None, ...]:
    return (op.op, op.result, op.site, op.source)


def _result(batch: PlayedBatch) -> str:
    if not batch.num_compared:
        return f"not played: {batch.why_not or 'no result belongs to a sample'}"
    if batch.ops:
        first = batch.ops[0]
        text = f"other bits in {plural(len(batch.ops), 'result')}, first in {first.op}, {first.site}"
    else:
        text = f"the same bits in {'its' if batch.num_compared == 1 else 'all'} {plural(batch.num_compared, 'result')}"
    return text if batch.why_not is None else f"{text}; not played to the end: {batch.why_not}"
