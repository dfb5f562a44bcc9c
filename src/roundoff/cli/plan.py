"""`roundoff plan`: where precision goes, and a recipe that trains."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.plan_progress import PlanProgress
from roundoff.cli.quantities import Bytes
from roundoff.errors import UsageError

if TYPE_CHECKING:
    from roundoff.experiments.engine import Place
    from roundoff.experiments.plan_activations import ActivationBudget

_PATH = click.Path(path_type=Path)


@click.command(
    name="plan",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff plan --base half train --data digits --epochs 2",
)
@click.option("--base", metavar="RECIPE", help="Where to start: half, O2, bf16, fp8, a file ...  [default: half]")
@click.option("--formats", metavar="LIST", help="What sites may take: e4m3,bf16.  [default: what the base computes in]")
@click.option("--target", metavar="TARGET", help="How far the loss may move in one step.  [default: loss=0.5%]")
@click.option("--bits", type=click.FloatRange(min=1, max=32), help="Instead: so many bits a number, on average.")
@click.option("--memory", type=Bytes(), help="Instead: so much memory for weights and results.")
@click.option("--modules-only", is_flag=True, help="Give formats to whole modules, never to single ops.")
@click.option(
    "--activations",
    metavar="SIZE|SHARE",
    help="Plan the bits of saved activations instead: 20MB, or 25% of what they take.",
)
@click.option("--fixed", "fixed_bits", type=click.IntRange(2, 16), metavar="BITS", help="Plan fixed point instead.")
@click.option("--measure-step", type=click.IntRange(0), default=2, show_default=True, help="The step to look into.")
@click.option("--no-verify", is_flag=True, help="Propose, and try nothing.")
@click.option("--seeds", type=click.IntRange(2), default=3, show_default=True, help="Trainings to compare, of each.")
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True, help="Length of these trainings.")
@click.option("--whole", is_flag=True, help="Let them be as long as the training is.")
@click.option("--max-runs", type=click.IntRange(1), help="End after so many trainings.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Begin no training later than this.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of scripts: set before they start.")
@click.option("--jobs", type=click.IntRange(min=0), default=1, show_default=True, help="Trainings at a time.")
@click.option("--on", "place", type=click.Choice(["pool", "ray"]), default="pool", show_default=True, help="Where.")
@click.option("-o", "--output", type=_PATH, metavar="FILE", help="Write the recipe here.  [default: in the folder]")
@click.option("--name", help="Name of the folder.  [default: plan-1, plan-2, ...]")
@click.option("--runs", "runs", type=_PATH, default="runs", show_default=True, help="Folder of that folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("-m", "is_module", is_flag=True, help="The script is the name of a module.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="train OPTIONS | SCRIPT ARGS | RUN")
def plan_command(
    base: str | None,
    formats: str | None,
    target: str | None,
    bits: float | None,
    memory: int | None,
    modules_only: bool,
    activations: str | None,
    fixed_bits: int | None,
    measure_step: int,
    no_verify: bool,
    seeds: int,
    steps: int,
    whole: bool,
    max_runs: int | None,
    max_minutes: float | None,
    seed: int,
    jobs: int,
    place: Place,
    output: Path | None,
    name: str | None,
    runs: Path,
    as_json: bool,
    is_module: bool,
    words: tuple[str, ...],
) -> None:
    """Say where precision goes in a training, and write a recipe that trains as fp32 does.

    Measures one step in fp32, gives every site the narrowest format that meets the target, trains shortly with that and
    with fp32 under several seeds, and repairs the recipe by bisection where it is worse. The words are options of
    `roundoff train`, a script that calls apply_recipe, or a run folder, whose command is taken.

    The same command goes on where an interrupted one was. Ends with 1 if the recipe does not train as fp32 does, or
    could not be tried.
    """
    from roundoff.cli.bisect_subject import subject_of
    from roundoff.experiments.engine import connected
    from roundoff.experiments.plan_extra import Extra, make_extra_plan
    from roundoff.experiments.plan_making import make_plan
    from roundoff.experiments.plan_options import PlanOptions
    from roundoff.experiments.plan_target import target_of
    from roundoff.experiments.plan_text import plan_text
    from roundoff.runs import to_json

    if activations is not None and fixed_bits is not None:
        raise UsageError.explain("--activations and --fixed are two plans.", fix="make one after the other.")
    is_extra = activations is not None or fixed_bits is not None
    _check_writable(output)
    options = PlanOptions(
        base=base or ("fp32" if is_extra else "half"),
        formats=tuple(formats.split(",")) if formats else (),
        target=target_of(target, bits=bits, memory_bytes=memory),
        modules_only=modules_only,
        extra=f"activations {activations}" if activations else f"fixed {fixed_bits}" if fixed_bits else "",
        measured_step=measure_step,
        verify=not no_verify,
        seeds=seeds,
        num_steps=None if whole else steps,
        max_runs=max_runs,
        max_seconds=None if max_minutes is None else 60 * max_minutes,
    )
    subject = subject_of(words, is_module=is_module, with_rules=False, seed=seed)
    with connected(place), PlanProgress(again=shlex.join(["roundoff", *sys.argv[1:]])) as progress:
        where = {"base": runs, "name": name, "recipe_file": output, "jobs": jobs, "on": place, "tell": progress.tell}
        if is_extra:
            extra = Extra(activations=_budget(activations), fixed_bits=fixed_bits)
            found = make_extra_plan(subject, extra, options, **where)  # type: ignore[arg-type]
            answer, text, is_good = found.to_object(), found.text, found.is_good
        else:
            plan = make_plan(subject, options, **where)  # type: ignore[arg-type]
            answer, text, is_good = plan.to_object(), plan_text(plan), plan.is_good
    click.echo(to_json(answer) if as_json else text)
    sys.exit(0 if is_good else 1)


def _budget(text: str | None) -> ActivationBudget | None:
    """Read a budget of saved activations: an amount of memory, or a share."""
    from roundoff.cli.quantities import Share
    from roundoff.experiments.plan_activations import ActivationBudget

    if text is None:
        return None
    if text.strip().endswith("%"):
        return ActivationBudget(share=Share().convert(text, None, None))
    return ActivationBudget(num_bytes=Bytes().convert(text, None, None))


def _check_writable(output: Path | None) -> None:
    """Raise now what would otherwise be known after the last training."""
    if output is None:
        return
    if output.suffix != ".toml":
        raise UsageError.explain(
            f"'{output}' cannot be the recipe.", why="a recipe file is known by its ending.", fix=f"-o {output}.toml"
        )
    if not output.absolute().parent.is_dir():
        raise UsageError.explain(f"'{output}' cannot be written.", why=f"there is no folder '{output.parent}'.")
