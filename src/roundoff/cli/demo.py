"""`roundoff demo`: see a training break and get told why, in under a minute."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click


@click.command(name="demo", epilog="Example: roundoff demo")
@click.option(
    "--runs", "base", default="runs", show_default=True, type=click.Path(path_type=Path), help="Folder of runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON.")
def demo_command(base: Path, as_json: bool) -> None:
    """Train on handwritten digits in fp16 with a fault in it, record every step, and name the op that broke it."""
    import torch

    from roundoff.diagnose import first_nonfinite
    from roundoff.record import recording
    from roundoff.report import to_text
    from roundoff.runs import Run, next_free_name, to_json
    from roundoff.train.demo_training import NUM_STEPS, train_in_half_precision

    torch.set_num_threads(1)  # two threads on two busy cores can be thirty times slower than one
    folder = next_free_name(base, "demo")
    losses: list[float] = []
    if not as_json:
        click.echo("Training 1,797 handwritten digits in fp16 ...")
    with _progress(NUM_STEPS, quiet=as_json) as advance, recording(to=folder, inputs=True, stacks=True) as session:

        def after_step(step: int, loss: float) -> None:
            losses.append(loss)
            advance(loss)

        train_in_half_precision(after_step)
    run = Run.open(folder)
    finding = first_nonfinite(run)
    findings = [finding] if finding else []
    run.write_findings(findings)
    if as_json:
        click.echo(to_json([found.to_object() for found in findings]))
        sys.exit(1 if findings else 0)
    assert session is not None
    fine = next((step for step, loss in enumerate(losses) if loss != loss), len(losses))
    click.echo(f"The loss fell from {losses[0]:.2f} to {min(losses[:fine]):.2f}, and is NaN from step {fine} on.\n")
    click.echo(to_text(findings))
    step = finding.step if finding else 0
    click.echo(f"  saved  every op of {session.num_recorded} steps, {session.num_events:,} events:  {folder}")
    click.echo(f"  next   roundoff runs show {folder} --step {step} --site '{finding.site if finding else '*'}'")


@contextlib.contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show a bar with the loss on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda loss: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total, loss="")
        yield lambda loss: progress.update(task, advance=1, loss=f"loss {loss:.3f}")
