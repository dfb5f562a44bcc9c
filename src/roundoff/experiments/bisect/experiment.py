"""A bisection from its target to its answer: the sites that must be wide, and a recipe that keeps them wide."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from roundoff.errors import BisectError, RoundoffError
from roundoff.experiments.bisect.answer import BisectAnswer, bisect_text
from roundoff.experiments.bisect.candidates import Scope, check_command, check_sites, find_scope
from roundoff.experiments.bisect.changes import make_change
from roundoff.experiments.bisect.options import BisectOptions, OnEvent
from roundoff.experiments.bisect.search import BisectSearch, SearchResult
from roundoff.experiments.bisect.stages import Stages
from roundoff.experiments.engine.scheduler import connected
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.trials.judges import Judge
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.targets import CommandTarget, ScriptTarget, TrainTarget
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs import JsonValue, to_json
from roundoff.runs.files.atomic import write_atomically


class BisectFolder(ExperimentFolder):
    """The folder of a bisection."""

    kind: ClassVar[str] = "bisect"
    noun: ClassVar[str] = "bisection"
    error: ClassVar[type[RoundoffError]] = BisectError
    differences_in_words: ClassVar[Mapping[str, str]] = {
        "fingerprint": "before the script or its settings changed",
        "good": "with another --good",
        "bad": "with another --bad",
        "substitute": "with another --switch substitute",
        "switches": "with another --switch",
        "auto": "with --auto in only one of them",
        "with_findings": "with another kind of --judge",
    }


def bisect_training(
    target: TrialTarget, options: BisectOptions, *, on_event: OnEvent = lambda event: None
) -> BisectAnswer:
    """Find a smallest set of sites of a training that must be wide, prove it, and write a recipe that keeps them wide.

    Everything is stored in a folder, `bisect-1`, ..., in which an interrupted search resumes. With `options.auto`
    standard checks run first, and decide what to search.

    Raises:
        BisectError: there is nothing to search, or the training is bad in any case.
        TrialError: a trial failed.
    """
    change = make_change(options)  # invalid recipes are reported before anything runs
    check_command(target, options)
    folder = BisectFolder.open(_search_identity(target, options), base=options.runs, name=options.name)
    with connected(options.on):
        trials = TrialRunner(target, folder, jobs=options.jobs, on=options.on)
        check_sites(trials, change, options)
        if options.auto:
            answer = _run_stages(trials, options, on_event=on_event)
        else:
            answer = _run_search(trials, options, on_event=on_event)
    write_answer(answer, folder.answer)
    return answer


def _run_search(
    trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent, judge: Judge | None = None
) -> BisectAnswer:
    """Search as the options say."""
    change = make_change(options)
    search = BisectSearch(trials, change, options, on_event=on_event)
    scope = find_scope(trials, search.run_unchanged(), change, options, on_event=on_event)
    found = search.find(scope.candidates, judge=judge)
    return make_answer(found, scope=scope, trials=trials, options=options, fmt=change.good_name)


def _run_stages(trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent) -> BisectAnswer:
    """Run the stages of `--auto`, then the search that they ask for, if any."""
    stages = Stages(trials, options, on_event=on_event)
    answer = stages.answer()
    if answer is None:
        searched = replace(options, auto=False, against=None, substitute=stages.substitute)
        answer = _run_search(trials, searched, on_event=on_event, judge=stages.judge)
    return replace(answer, stages=tuple(stages.findings))


def _search_identity(target: TrialTarget, options: BisectOptions) -> Mapping[str, JsonValue]:
    """Return what must be equal for a search to resume; other options may change."""
    bad = None if options.bad is None else to_toml(find_recipe(options.bad))
    return {
        "subject": target.name,
        "fingerprint": target.fingerprint,
        "good": options.good,
        "bad": bad,
        "substitute": options.substitute,
        "switches": dict(options.switches),
        "auto": options.auto,
        "with_findings": options.with_rules,
    }


def make_answer(
    found: SearchResult, *, scope: Scope, trials: TrialRunner, options: BisectOptions, fmt: str
) -> BisectAnswer:
    """Return the answer of a search, and write its recipe."""
    target, recipe, candidates = trials.target, scope.recipe, scope.candidates
    answer = BisectAnswer(
        subject=target.name,
        good=options.substitute or options.good,
        bad=options.bad or (recipe.name if recipe is not None else "the unchanged training"),
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
    return replace(answer, next_commands=_next_commands(target, answer, options))


def write_answer(answer: BisectAnswer, file: Path) -> None:
    """Write the answer next to its trials, unless a larger budget could still improve it."""
    if answer.is_minimal:
        write_atomically(file, f"{to_json(answer.to_object(), indent=1)}\n".encode())


def _write_recipe(recipe: Recipe, answer: BisectAnswer, file: Path) -> None:
    """Write the bad recipe with the overrides that make it good, and the answer as comments."""
    overrides = {**recipe.overrides, **dict.fromkeys(answer.found, answer.fmt)}
    saved = replace(recipe, name=f"{recipe.name}-bisected", description="", overrides=overrides)
    comments = "".join(f"# {line}\n" for line in bisect_text(answer).splitlines())
    write_atomically(file, f"{comments}{to_toml(saved)}".encode())


def _next_commands(target: TrialTarget, answer: BisectAnswer, options: BisectOptions) -> tuple[str, ...]:
    if options.substitute is not None:
        switches = {**options.switches, "substitute": options.substitute, "substitute.ops": ",".join(answer.found)}
        words = target.name if isinstance(target, TrainTarget | CommandTarget) else f"roundoff run {target.name}"
        return (f"ROUNDOFF_SWITCHES={shlex.quote(json.dumps(switches))} {words}",)
    if isinstance(target, TrainTarget):
        config = replace(target.config, recipe=str(answer.recipe_file), loss_scale="recipe")
        return (TrainTarget(config=config).name,)
    if isinstance(target, ScriptTarget):
        command = shlex.join(target.script.command)
        return (
            f'apply_recipe(model, optimizer, "{answer.recipe_file}")',
            f"ROUNDOFF_RECIPE={answer.recipe_file} {command}",
        )
    assert isinstance(target, CommandTarget)
    return (f"ROUNDOFF_SITES={','.join(answer.found)} {target.name}",)
