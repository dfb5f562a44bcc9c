"""Makes the answer of a bisection: its proof, the recipe to use, and the commands to go on with."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from roundoff.experiments.bisect_options import BisectOptions
from roundoff.experiments.bisect_scope import Scope
from roundoff.experiments.bisect_search import Found
from roundoff.experiments.subject_command import CommandSubject
from roundoff.experiments.subject_script import ScriptSubject
from roundoff.experiments.subject_train import TrainSubject
from roundoff.experiments.trial import Subject
from roundoff.experiments.trials import Trials
from roundoff.precision import Recipe
from roundoff.precision.recipe_toml import to_toml
from roundoff.report.bisect_text import BisectAnswer, bisect_text
from roundoff.runs import to_json
from roundoff.runs.atomic import write_atomically


def answer_of(found: Found, *, scope: Scope, trials: Trials, options: BisectOptions, fmt: str) -> BisectAnswer:
    """Put together what a reader gets, and write the recipe."""
    subject, recipe, candidates = trials.subject, scope.recipe, scope.candidates
    answer = BisectAnswer(
        subject=subject.name,
        good=options.substitute or options.good,
        bad=options.bad or (recipe.name if recipe is not None else "the training as it is"),
        is_substituted=options.substitute is not None,
        fmt=fmt,
        judge=f"{found.judge.name}: {found.judge.text}",
        is_mirror=options.mirror,
        num_sites=len(candidates.modules),
        is_measured=candidates.is_measured,
        found=found.sites,
        modules=found.modules,
        is_minimal=found.is_minimal,
        stopped_by=found.stopped_by,
        with_them=found.with_them,
        without=found.without,
        as_it_is=found.as_it_is,
        still_above=found.still_above,
        notes=found.notes,
        num_runs=found.num_runs,
        num_other_runs=found.num_other_runs,
        seconds=trials.seconds,
        folder=trials.folder.path,
    )
    if not found.sites or options.mirror:
        return answer
    file = trials.folder.path / "recipe.toml"
    if recipe is not None:
        _write_recipe(recipe, answer, file)
        answer = replace(answer, recipe_file=file)
    return replace(answer, next_commands=_next_commands(subject, answer, options))


def write_answer(answer: BisectAnswer, file: Path) -> None:
    """Write the answer beside its trials, unless there is more to ask with a larger budget."""
    if answer.is_minimal:
        write_atomically(file, f"{to_json(answer.to_object(), indent=1)}\n".encode())


def _write_recipe(recipe: Recipe, answer: BisectAnswer, file: Path) -> None:
    """Write the bad recipe with the overrides that save it, and why as comments."""
    overrides = {**recipe.overrides, **dict.fromkeys(answer.found, answer.fmt)}
    saved = replace(recipe, name=f"{recipe.name}-bisected", description="", overrides=overrides)
    comments = "".join(f"# {line}\n" for line in bisect_text(answer).splitlines())
    write_atomically(file, f"{comments}{to_toml(saved)}".encode())


def _next_commands(subject: Subject, answer: BisectAnswer, options: BisectOptions) -> tuple[str, ...]:
    if options.substitute is not None:
        switches = {**options.switches, "substitute": options.substitute, "substitute.ops": ",".join(answer.found)}
        words = subject.name if isinstance(subject, TrainSubject | CommandSubject) else f"roundoff run {subject.name}"
        return (f"ROUNDOFF_SWITCHES={shlex.quote(json.dumps(switches))} {words}",)
    if isinstance(subject, TrainSubject):
        config = replace(subject.config, recipe=str(answer.recipe_file), loss_scale="recipe")
        return (TrainSubject(config=config).name,)
    if isinstance(subject, ScriptSubject):
        command = shlex.join(subject.script.command)
        return (
            f'apply_recipe(model, optimizer, "{answer.recipe_file}")',
            f"ROUNDOFF_RECIPE={answer.recipe_file} {command}",
        )
    assert isinstance(subject, CommandSubject)
    return (f"ROUNDOFF_SITES={','.join(answer.found)} {subject.name}",)
