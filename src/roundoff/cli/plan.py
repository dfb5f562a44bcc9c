"""`roundoff plan`: where precision goes, and a recipe that trains."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.console.options import Bytes, Share
from roundoff.cli.console.progress import PlanProgress
from roundoff.errors import UsageError

if TYPE_CHECKING:
    from roundoff.experiments.engine.scheduler import Backend
    from roundoff.experiments.plan.extra import ActivationBudget, ExtraRequest
    from roundoff.experiments.plan.options import OnMessage, PlanOptions
    from roundoff.experiments.trials.trial import TrialTarget
    from roundoff.runs import JsonValue

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
    help="Plan the bits of saved activations instead: 20MB, or 25% of what they take. Of settings of train only.",
)
@click.option(
    "--fixed",
    "fixed_bits",
    type=click.IntRange(2, 16),
    metavar="BITS",
    help="Plan fixed point instead. Of settings of train only.",
)
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
    words: tuple[str, ...],
    is_module: bool,
    seed: int,
    output: Path | None,
    name: str | None,
    runs: Path,
    jobs: int,
    place: Backend,
    as_json: bool,
    **asked: Any,
) -> None:
    """Say where precision goes in a training, and write a recipe that trains as fp32 does.

    Measures one step in fp32, gives every site the narrowest format that meets the target, trains shortly with that and
    with fp32 under several seeds, and repairs the recipe by bisection where it is worse. The words are options of
    `roundoff train`, a script that calls apply_recipe, or a run folder, whose command is taken.

    The same command goes on where an interrupted one was. Ends with 1 if the recipe does not train as fp32 does, or
    could not be tried.
    """
    from roundoff.cli.training_argument import training_named
    from roundoff.experiments.engine.scheduler import connected
    from roundoff.runs import to_json

    extra = _extra(asked.pop("activations"), asked.pop("fixed_bits"))
    options = _options(asked, extra)
    where = _Where(runs=runs, name=name, recipe_file=_writable(output), jobs=jobs, place=place)
    subject = training_named(words, command="plan", is_module=is_module, with_rules=False, seed=seed)
    with connected(place), PlanProgress(again=shlex.join(["roundoff", *sys.argv[1:]])) as progress:
        made = _made(subject, options, extra, where, tell=progress.tell)
    click.echo(to_json(made.as_object) if as_json else made.text)
    sys.exit(0 if made.is_good else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Where a plan is made and written."""

    runs: Path
    name: str | None
    recipe_file: Path | None
    jobs: int
    place: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A plan of either kind, as far as it is told."""

    text: str
    as_object: dict[str, JsonValue]
    is_good: bool


def _extra(activations: str | None, fixed_bits: int | None) -> ExtraRequest | None:
    """Return what is planned instead of formats, if that was asked for."""
    from roundoff.experiments.plan.extra import ExtraRequest

    if activations is not None and fixed_bits is not None:
        raise UsageError.explain("--activations and --fixed are two plans.", fix="make one after the other.")
    if activations is None and fixed_bits is None:
        return None
    return ExtraRequest(activations=None if activations is None else _budget(activations), fixed_bits=fixed_bits)


def _budget(text: str) -> ActivationBudget:
    """Read a budget of saved activations: an amount of memory, or a share."""
    from roundoff.experiments.plan.extra import ActivationBudget

    try:
        if text.strip().endswith("%"):
            return ActivationBudget(share=Share().convert(text, None, None))
        return ActivationBudget(num_bytes=Bytes().convert(text, None, None))
    except click.BadParameter as error:
        raise UsageError.explain(
            f"--activations {text} cannot be.",
            why="it is neither an amount of memory, nor a share of what saved activations take, 0% to 100%.",
            fix="for example: --activations 20MB, or --activations 25%",
        ) from error


def _options(asked: dict[str, Any], extra: ExtraRequest | None) -> PlanOptions:
    """Return where the plan starts, what it has to meet, and how much trying it may cost."""
    from roundoff.experiments.plan.options import PlanOptions
    from roundoff.experiments.plan.target import target_of

    formats, minutes = asked["formats"], asked["max_minutes"]
    return PlanOptions(
        base=asked["base"] or ("half" if extra is None else "fp32"),
        formats=tuple(formats.split(",")) if formats else (),
        target=target_of(asked["target"], bits=asked["bits"], memory_bytes=asked["memory"]),
        modules_only=asked["modules_only"],
        extra="" if extra is None else extra.asked,
        measured_step=asked["measure_step"],
        verify=not asked["no_verify"],
        seeds=asked["seeds"],
        num_steps=None if asked["whole"] else asked["steps"],
        max_runs=asked["max_runs"],
        max_seconds=None if minutes is None else 60 * minutes,
    )


def _made(
    subject: TrialTarget, options: PlanOptions, extra: ExtraRequest | None, where: _Where, *, tell: OnMessage
) -> _Made:
    """Make the plan that was asked for."""
    from roundoff.experiments.plan.answer import plan_text
    from roundoff.experiments.plan.experiment import make_plan
    from roundoff.experiments.plan.extra import make_extra_plan

    place: dict[str, Any] = {"base": where.runs, "name": where.name, "recipe_file": where.recipe_file}
    place |= {"jobs": where.jobs, "on": where.place, "tell": tell}
    if extra is not None:
        found = make_extra_plan(subject, extra, options, **place)
        return _Made(text=found.text, as_object=found.to_object(), is_good=found.is_good)
    plan = make_plan(subject, options, **place)
    return _Made(text=plan_text(plan), as_object=plan.to_object(), is_good=plan.is_good)


def _writable(output: Path | None) -> Path | None:
    """Return the file for the recipe, and raise now what would otherwise be known after the last training."""
    if output is None:
        return None
    if output.suffix != ".toml":
        raise UsageError.explain(
            f"'{output}' cannot be the recipe.", why="a recipe file is known by its ending.", fix=f"-o {output}.toml"
        )
    if not output.absolute().parent.is_dir():
        raise UsageError.explain(f"'{output}' cannot be written.", why=f"there is no folder '{output.parent}'.")
    return output
