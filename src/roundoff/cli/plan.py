"""`roundoff plan`: where precision is lost, and a recipe that trains."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, Bytes, Share
from roundoff.cli.terminal import echo, exit_code_of, warn
from roundoff.cli.training_argument import training_named, training_options
from roundoff.errors import UsageError
from roundoff.progress import ProgressBar

if TYPE_CHECKING:
    from roundoff.experiments.plan.plan_session import ActivationBudget
    from roundoff.experiments.trials.trial import TrialTarget


def _parse_formats(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _parse_budget(ctx: click.Context, param: click.Parameter, text: str | None) -> ActivationBudget | None:
    """Return a budget of saved activations: an amount of memory, or a share."""
    from roundoff.experiments.plan.plan_session import ActivationBudget

    if text is None:
        return None
    try:
        if text.strip().endswith("%"):
            return ActivationBudget(share=Share().convert(text, None, None))
        return ActivationBudget(num_bytes=Bytes().convert(text, None, None))
    except click.BadParameter as error:
        raise UsageError.explain(
            f"Invalid --activations {text}.",
            why="it is an amount of memory, or a share of what saved activations take, 0% to 100%.",
            fix="for example: --activations 20MB, or --activations 25%",
        ) from error


def _check_output(ctx: click.Context, param: click.Parameter, output: Path | None) -> Path | None:
    """Raise if the recipe cannot be written, now and not after the last training."""
    if output is None:
        return None
    if output.suffix != ".toml":
        raise UsageError.explain(
            f"Invalid -o {output}.", why="the name of a recipe file ends with .toml.", fix=f"-o {output}.toml"
        )
    if not output.absolute().parent.is_dir():
        raise UsageError.explain(f"'{output}' cannot be written.", why=f"there is no folder '{output.parent}'.")
    return output


@click.command(
    name="plan",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: roundoff plan --base half train --data digits --epochs 2, "
    "then: roundoff plan --watch planned.toml train.py",
)
@click.option("--base", metavar="RECIPE", help="Recipe to start from: half, O2, bf16, fp8, a file ...  [default: half]")
@click.option(
    "--formats",
    metavar="LIST",
    callback=_parse_formats,
    help="Formats that sites may take: e4m3,bf16.  [default: that of the base]",
)
@click.option("--target", metavar="TARGET", help="How much the loss may change in one step.  [default: loss=0.5%]")
@click.option("--bits", type=click.FloatRange(min=1, max=32), help="Instead of --target: mean bits per number.")
@click.option("--memory", type=Bytes(), help="Instead of --target: memory for weights and results.")
@click.option("--modules-only", is_flag=True, help="Give formats to whole modules, never to single ops.")
@click.option(
    "--activations",
    metavar="SIZE|SHARE",
    callback=_parse_budget,
    help="Plan the bits of saved activations instead: 20MB, or 25% of what they take. Only for settings of train.",
)
@click.option(
    "--fixed",
    "fixed_bits",
    type=click.IntRange(2, 16),
    metavar="BITS",
    help="Plan fixed point instead. Only for settings of train.",
)
@click.option(
    "--measure-step",
    "measured_step",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="The step to measure.",
)
@click.option(
    "--watch",
    "watched_recipe",
    metavar="RECIPE",
    help="Plan nothing: run the training with this recipe, and warn when its margins shrink towards a limit.",
)
@click.option(
    "--every", type=click.IntRange(1), default=100, show_default=True, help="With --watch: measure every Nth step."
)
@click.option("--no-verify", "verify", flag_value=False, default=True, help="Only propose a recipe, train nothing.")
@click.option(
    "--seeds", type=click.IntRange(2), default=3, show_default=True, help="Trainings to compare, of each kind."
)
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True, help="Length of these trainings.")
@click.option("--whole", is_flag=True, help="Run these trainings to their end.")
@click.option("--max-runs", type=click.IntRange(1), help="Stop after this many trainings.")
@click.option(
    "-o",
    "--output",
    "recipe_file",
    type=PATH,
    metavar="FILE",
    callback=_check_output,
    help="Write the recipe here.  [default: in the folder]",
)
@training_options("plan", metavar="train OPTIONS | SCRIPT ARGS | RUN")
def plan_command(
    words: tuple[str, ...],
    is_module: bool,
    seed: int,
    as_json: bool,
    target: str | None,
    bits: float | None,
    memory: int | None,
    steps: int,
    whole: bool,
    watched_recipe: str | None,
    every: int,
    **options: Any,
) -> None:
    """Show where precision is lost in a training, and write a recipe that trains as well as fp32.

    Measures one step in fp32, picks for every layer the narrowest format that meets the target, compares short
    trainings with that and with fp32 for several seeds, and repairs the recipe by bisection where it is worse. The
    words are options of `roundoff train`, a script that calls apply_recipe, or a run folder, whose command is used.

    The same command resumes an interrupted plan. Ends with 1 if the recipe does not train as well as fp32, or could
    not be verified; with --watch, if a margin shrinks or the training fails.
    """
    if watched_recipe is not None:
        training = training_named(words, command="plan", is_module=is_module, with_rules=False, seed=seed)
        _watch(training, watched_recipe, every=every, as_json=as_json)
    from roundoff.experiments.engine.scheduler import connected_to
    from roundoff.experiments.plan.plan_session import PlanOptions, target_of
    from roundoff.experiments.plan.planner import make_requested_plan

    settings = PlanOptions(
        target=target_of(target, bits=bits, memory_bytes=memory), num_steps=None if whole else steps, **options
    )
    training = training_named(words, command="plan", is_module=is_module, with_rules=False, seed=seed)
    resume = shlex.join(["roundoff", *sys.argv[1:]])
    progress = ProgressBar(
        "planning",
        is_counted=False,
        time="elapsed",
        on_interrupt=lambda: [f"every finished training is kept. To resume: {resume}"],
    )
    with connected_to(settings.on), progress:
        plan = make_requested_plan(training, settings, on_message=progress.line)
    if as_json:
        echo_json("plan", plan.to_object())
    else:
        echo(plan.text)
    sys.exit(exit_code_of(not plan.is_good))


def _watch(training: TrialTarget, recipe: str, *, every: int, as_json: bool) -> NoReturn:
    from roundoff.experiments.plan.margin_watch import watch_margins

    history = watch_margins(training, recipe, every=every, on_warning=warn)
    if as_json:
        echo_json("plan-watch", history.to_object())
    else:
        echo(history.text(recipe), err=True)
    sys.exit(exit_code_of(not history.is_good))
