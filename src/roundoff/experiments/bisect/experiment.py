"""`roundoff bisect` as a function: a training in, the sites that must be wide out, with a recipe that uses them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from roundoff.experiments.bisect.answer import BisectAnswer, bisect_text
from roundoff.experiments.bisect.candidates import Scope, check_command, check_sites, find_scope, make_change
from roundoff.experiments.bisect.folder import open_bisect_folder
from roundoff.experiments.bisect.options import BisectOptions, OnEvent
from roundoff.experiments.bisect.search import BisectSearch, SearchResult
from roundoff.experiments.bisect.stages import Stages
from roundoff.experiments.engine.scheduler import Backend, connected
from roundoff.experiments.trials.judges import Judge
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.targets import CommandTarget, ScriptTarget, TrainTarget
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs import JsonValue, to_json
from roundoff.runs.files.atomic import write_atomically

# == Makes the answer of a bisection: its proof, the recipe to use, and the commands to go on with.


def make_answer(
    found: SearchResult, *, scope: Scope, trials: TrialRunner, options: BisectOptions, fmt: str
) -> BisectAnswer:
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


def _next_commands(subject: TrialTarget, answer: BisectAnswer, options: BisectOptions) -> tuple[str, ...]:
    if options.substitute is not None:
        switches = {**options.switches, "substitute": options.substitute, "substitute.ops": ",".join(answer.found)}
        words = subject.name if isinstance(subject, TrainTarget | CommandTarget) else f"roundoff run {subject.name}"
        return (f"ROUNDOFF_SWITCHES={shlex.quote(json.dumps(switches))} {words}",)
    if isinstance(subject, TrainTarget):
        config = replace(subject.config, recipe=str(answer.recipe_file), loss_scale="recipe")
        return (TrainTarget(config=config).name,)
    if isinstance(subject, ScriptTarget):
        command = shlex.join(subject.script.command)
        return (
            f'apply_recipe(model, optimizer, "{answer.recipe_file}")',
            f"ROUNDOFF_RECIPE={answer.recipe_file} {command}",
        )
    assert isinstance(subject, CommandTarget)
    return (f"ROUNDOFF_SITES={','.join(answer.found)} {subject.name}",)


def bisect_training(
    subject: TrialTarget,
    options: BisectOptions,
    *,
    base: Path = Path("runs"),
    name: str | None = None,
    jobs: int = 1,
    on: Backend = "pool",
    on_event: OnEvent = lambda event: None,
) -> BisectAnswer:
    """Find a smallest set of sites of a training that must be wide, prove it, and write the recipe that uses it.

    Everything goes into a folder of `base`, `bisect-1`, ...; a search that was interrupted there goes on. With
    `options.auto` it first tries what experienced people try, and lets that decide what is searched for.

    Raises:
        BisectError: there is nothing to search, or the training is bad in any case.
        TrialError: a trial failed.
    """
    change = make_change(options)  # says now what cannot be
    check_command(subject, options)
    folder = open_bisect_folder(_search_identity(subject, options), base=base, name=name)
    with connected(on):
        trials = TrialRunner(subject, folder, jobs=jobs, on=on)
        check_sites(trials, change, options)
        if options.auto:
            answer = _run_stages(trials, options, on_event=on_event)
        else:
            answer = _run_search(trials, options, on_event=on_event)
    write_answer(answer, Path(folder.answer))
    return answer


def _run_search(
    trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent, judge: Judge | None = None
) -> BisectAnswer:
    """Search as the options say."""
    change = make_change(options)
    search = BisectSearch(trials, change, options, on_event=on_event)
    scope = find_scope(trials, search.try_as_it_is(), change, options, on_event=on_event)
    found = search.find(scope.candidates, judge=judge)
    return make_answer(found, scope=scope, trials=trials, options=options, fmt=change.good_name)


def _run_stages(trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent) -> BisectAnswer:
    """Go through the stages, and search for what they leave as the question."""
    stages = Stages(trials, options, on_event=on_event)
    answer = stages.answer()
    if answer is None:
        searched = replace(options, auto=False, against=None, substitute=stages.substitute)
        answer = _run_search(trials, searched, on_event=on_event, judge=stages.judge)
    return replace(answer, stages=tuple(stages.told))


def _search_identity(subject: TrialTarget, options: BisectOptions) -> Mapping[str, JsonValue]:
    """Return what makes a search the same: what else it is told may change when it goes on."""
    bad = None if options.bad is None else to_toml(find_recipe(options.bad))
    return {
        "subject": subject.name,
        "fingerprint": subject.fingerprint,
        "good": options.good,
        "bad": bad,
        "substitute": options.substitute,
        "switches": dict(options.switches),
        "auto": options.auto,
        "with_findings": options.judge.startswith("rule:"),
    }
