"""What a bisection searches: what is done to sites, which sites there are, and the recipe that is bad."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.errors import BisectError
from roundoff.experiments.bisect_changes import SubstitutedSites, WideSites
from roundoff.experiments.bisect_options import BisectOptions, OnEvent
from roundoff.experiments.bisect_suspects import listed_ops, measured_step, narrow_format, takes_ops
from roundoff.experiments.candidates import MODEL_SITE, Candidates, candidates_from_names, candidates_from_step
from roundoff.experiments.steering import APPLIED_NAME
from roundoff.experiments.subject_command import CommandSubject
from roundoff.experiments.trial import Subject, TrialResult
from roundoff.experiments.trials import Trials, log_of
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.applied import Applied, read_applied
from roundoff.precision.named import recipe_named
from roundoff.precision.recipe_toml import from_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What there is to search among."""

    candidates: Candidates
    recipe: Recipe | None = None
    """The bad one, as it was applied; None where that is not known or beside the question."""


def change_for(options: BisectOptions) -> WideSites | SubstitutedSites:
    """Return what is done to chosen sites.

    Raises:
        BisectError, RecipeError: a recipe does not exist, or cannot be given to a site.
    """
    bad = None if options.bad is None else _checked(options.bad)
    if options.substitute is not None:
        return SubstitutedSites(bad=bad, good_name=options.substitute, switches=options.switches)
    good = find_recipe(options.good)
    if good.compute not in ("plain", "cast"):
        raise BisectError.explain(
            f"Sites cannot be given the recipe '{options.good}'.",
            why=f"a site takes a format, and '{options.good}' has several.",
            fix="--good fp32, bf16 or half",
        )
    return WideSites(bad=bad, good=_checked(options.good), good_name=good.compute_format, switches=options.switches)


def _checked(recipe: str) -> str:
    """Return a recipe as a process anywhere finds it, or raise that there is none."""
    find_recipe(recipe)
    return str(Path(recipe).absolute()) if recipe.endswith(".toml") else recipe


def check_command(subject: Subject, options: BisectOptions) -> None:
    """Raise if it is a command whose sites nobody can know."""
    if isinstance(subject, CommandSubject) and not options.sites and not options.auto:
        raise _which_sites(subject)


def check_sites(trials: Trials, change: WideSites | SubstitutedSites, options: BisectOptions) -> None:
    """Raise if the model has no site of a name that was asked for: one step tells, before any whole training."""
    as_it_is = change.setting(())
    if not options.sites or isinstance(trials.subject, CommandSubject) or trials.is_kept(as_it_is):
        return
    if isinstance(change, SubstitutedSites):  # its sites are those of the ops, which one step lists anyway
        return
    first_step = trials.apart(replace(as_it_is, steps=1))
    applied = read_applied(first_step.folder / APPLIED_NAME) if first_step.folder is not None else []
    if applied:
        Candidates(modules=(*applied[0].sites, f"{MODEL_SITE}:*")).only(options.sites)


def scope_of(
    trials: Trials,
    bad: TrialResult,
    change: WideSites | SubstitutedSites,
    options: BisectOptions,
    *,
    on_event: OnEvent,
) -> Scope:
    """Return the sites to search among, the most suspicious first, once the bad run is known.

    Raises:
        BisectError: the training tells nothing of its sites.
    """
    subject = trials.subject
    if isinstance(subject, CommandSubject):
        if not options.sites:
            raise _which_sites(subject)
        return Scope(candidates=Candidates(modules=options.sites))
    if isinstance(change, SubstitutedSites):
        return Scope(candidates=listed_ops(trials, change, on_event=on_event).only(options.sites))
    applied = _applied(subject, bad)
    recipe = from_toml(applied.recipe_toml, where="the training's recipe", named=recipe_named)
    measured = measured_step(trials, fmt=narrow_format(recipe), on_event=on_event)
    if measured is not None:
        candidates = candidates_from_step(measured, sites=applied.sites, fmt=narrow_format(recipe))
    else:
        candidates = candidates_from_names(applied.sites)
    if not takes_ops(recipe):
        candidates = candidates.without_ops()
    return Scope(candidates=candidates.only(options.sites), recipe=recipe)


def calls_apply_recipe(bad: TrialResult) -> bool:
    """Whether formats of single sites reach the training."""
    return bad.folder is not None and bool(read_applied(bad.folder / APPLIED_NAME))


def _which_sites(subject: CommandSubject) -> BisectError:
    return BisectError.explain(
        f"Which sites of `{subject.name}`?",
        why="a command tells nothing of its sites.",
        fix="--sites a,b,c or --sites FILE; a Python script is named without `python` in front of it.",
    )


def _applied(subject: Subject, bad: TrialResult) -> Applied:
    assert bad.folder is not None
    calls = read_applied(bad.folder / APPLIED_NAME)
    if calls:
        return calls[0]
    if bad.exit_code:
        raise BisectError.explain(
            f"`{subject.name}` fails by itself: exit code {bad.exit_code}.",
            why=f"it ended before it called apply_recipe{log_of(bad.folder)}",
            fix="see that it runs.",
        )
    raise BisectError.explain(
        f"`{subject.name}` never calls apply_recipe.",
        why="formats of single sites reach a script through it, so there is nothing to search.",
        fix="add `model, optimizer = roundoff.apply_recipe(model, optimizer, 'half')`, or search by --switch "
        "substitute=fp64, which needs no such call.",
    )
