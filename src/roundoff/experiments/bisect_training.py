"""`roundoff bisect` as a function: a training in, the sites that must be wide out, with a recipe that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from roundoff.experiments.bisect_answer import answer_of, write_answer
from roundoff.experiments.bisect_folder import bisect_folder
from roundoff.experiments.bisect_options import BisectOptions, OnEvent
from roundoff.experiments.bisect_scope import change_for, check_command, check_sites, scope_of
from roundoff.experiments.bisect_search import BisectSearch
from roundoff.experiments.bisect_stages import Stages
from roundoff.experiments.engine import Place, connected
from roundoff.experiments.judges import Judge
from roundoff.experiments.trial import Subject
from roundoff.experiments.trials import Trials
from roundoff.precision import find_recipe
from roundoff.precision.recipe_toml import to_toml
from roundoff.report.bisect_text import BisectAnswer
from roundoff.runs import JsonValue


def bisect_training(
    subject: Subject,
    options: BisectOptions,
    *,
    base: Path = Path("runs"),
    name: str | None = None,
    jobs: int = 1,
    on: Place = "pool",
    on_event: OnEvent = lambda event: None,
) -> BisectAnswer:
    """Find a smallest set of sites of a training that must be wide, prove it, and write the recipe that uses it.

    Everything goes into a folder of `base`, `bisect-1`, ...; a search that was interrupted there goes on. With
    `options.auto` it first tries what experienced people try, and lets that decide what is searched for.

    Raises:
        BisectError: there is nothing to search, or the training is bad in any case.
        TrialError: a trial failed.
    """
    change = change_for(options)  # says now what cannot be
    check_command(subject, options)
    folder = bisect_folder(_plan(subject, options), base=base, name=name)
    with connected(on):
        trials = Trials(subject, folder, jobs=jobs, on=on)
        check_sites(trials, change, options)
        if options.auto:
            answer = _walked(trials, options, on_event=on_event)
        else:
            answer = _searched(trials, options, on_event=on_event)
    write_answer(answer, Path(folder.answer))
    return answer


def _searched(trials: Trials, options: BisectOptions, *, on_event: OnEvent, judge: Judge | None = None) -> BisectAnswer:
    """Search as the options say."""
    change = change_for(options)
    search = BisectSearch(trials, change, options, on_event=on_event)
    scope = scope_of(trials, search.try_as_it_is(), change, options, on_event=on_event)
    found = search.find(scope.candidates, judge=judge)
    return answer_of(found, scope=scope, trials=trials, options=options, fmt=change.good_name)


def _walked(trials: Trials, options: BisectOptions, *, on_event: OnEvent) -> BisectAnswer:
    """Go through the stages, and search for what they leave as the question."""
    stages = Stages(trials, options, on_event=on_event)
    answer = stages.answer()
    if answer is None:
        searched = replace(options, auto=False, against=None, substitute=stages.substitute)
        answer = _searched(trials, searched, on_event=on_event, judge=stages.judge)
    return replace(answer, stages=tuple(stages.told))


def _plan(subject: Subject, options: BisectOptions) -> Mapping[str, JsonValue]:
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
