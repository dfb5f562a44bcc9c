"""Candidates: the sites and ops of a training that may be to blame, the most suspicious first."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Self

from roundoff.errors import BisectError, TrialError
from roundoff.experiments.bisect.changes import SubstitutedSites, WideSites
from roundoff.experiments.bisect.options import BisectEvent, BisectOptions, OnEvent
from roundoff.experiments.trials.measurement import measurement_task
from roundoff.experiments.trials.runner import TrialRunner, quote_log
from roundoff.experiments.trials.targets import CommandTarget
from roundoff.experiments.trials.trial import TrialResult, TrialTarget
from roundoff.experiments.trials.trial_environment import APPLIED_NAME
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.recipe.named_recipes import recipe_named
from roundoff.precision.recipe.recipe_environment import RecipeApplication, read_applied_recipes
from roundoff.precision.recipe.toml import from_toml
from roundoff.runs import to_json
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.plain_json import read_json_object
from roundoff.sensitivity.effects import Effect, Sensitivity, most_suspicious
from roundoff.switches import Listing, read_listing
from roundoff.words import join_words

MODEL_SITE = "<model>"
"""The code of the model itself, outside of all its parts."""
_MAX_SHOWN = 6
_HOLDERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Modules that compute nothing themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What may be to blame, as overrides name it: modules, and the ops inside each."""

    modules: tuple[str, ...]
    """The most suspicious first."""
    ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The ops of each module's own code, `blocks.1.attn:softmax`, the most suspicious first; none if not measured."""
    is_measured: bool = False
    """Whether a measured step ordered them."""
    covers_inner: bool = True
    """Whether to change a module is to change those inside it, too."""
    own_kernels: tuple[str, ...] = ()
    """Operators among them whose own kernels the other implementation runs, too."""

    def inside(self, modules: Iterable[str]) -> tuple[str, ...]:
        """Return the ops that are changed with these modules: the most suspicious of each, then the second ones."""
        sites = dict.fromkeys(site for module in modules for site in self._covered(module))
        in_turn = zip_longest(*(self.ops[site] for site in sites))
        return tuple(op for ops in in_turn for op in ops if op is not None)

    def _covered(self, module: str) -> list[str]:
        inner = [site for site in self.ops if self.covers_inner and site.startswith(f"{module}.")]
        return [module, *inner] if module in self.ops else inner

    def without_ops(self) -> Self:
        """Return the modules alone, for recipes that cannot treat an op in its own way."""
        modules = tuple(module for module in self.modules if ":" not in module)
        return replace(self, modules=modules, ops={})

    def only(self, patterns: Sequence[str]) -> Self:
        """Return those that a pattern matches, `blocks.*.attn`, and what is inside them; all if there is no pattern.

        Raises:
            BisectError: a pattern matches none.
        """
        if not patterns:
            return self
        for pattern in patterns:
            if not any(_matches(site, [pattern]) for site in self.modules):
                raise BisectError.explain(
                    f"--sites {pattern} matches no site.",
                    why=f"there are {join_words(self.modules, at_most=_MAX_SHOWN)}.",
                )
        return replace(self, modules=tuple(site for site in self.modules if _matches(site, patterns)))


def candidates_from_names(sites: Mapping[str, str]) -> Candidates:
    """Return the modules of a model by their names and classes: the innermost first, as they stand in the model.

    Modules that only hold others are left out; the code of the model itself comes last.
    """
    computing = [site for site, kind in sites.items() if kind not in _HOLDERS]
    holders = {site.rpartition(".")[0] for site in sites}
    inner = [site for site in computing if site not in holders]
    outer = sorted((site for site in computing if site in holders), key=lambda site: -site.count("."))
    return Candidates(modules=(*inner, *outer))


def candidates_from_step(measured: Sensitivity, *, sites: Mapping[str, str], fmt: str) -> Candidates:
    """Return the modules that rounding to a format touches, in the order in which a measured step suspects them.

    Only those of `sites`, the modules that an override can name, and the code of the model itself.
    """
    by_site: dict[str, list[Effect]] = {}
    for effect in measured.of(fmt):
        by_site.setdefault(effect.site, []).append(effect)
    named = {site: effects for site, effects in by_site.items() if site in sites or site == MODEL_SITE}
    ops = {site: _ops_by_suspicion(site, effects) for site, effects in named.items()}
    suspected = sorted(named, key=lambda site: -most_suspicious(named[site]))
    return Candidates(modules=tuple(_override_key(site) for site in suspected), ops=ops, is_measured=True)


def candidates_from_listing(listing: Listing) -> Candidates:
    """Return the sites whose ops can be substituted, those that differ most from the other implementation first."""
    ops: dict[str, list[str]] = {}
    for op in listing.suspects:
        ops.setdefault(op.site, []).append(op.key)
    return Candidates(
        modules=listing.sites,
        ops={site: tuple(keys) for site, keys in ops.items()},
        is_measured=True,
        covers_inner=False,
        own_kernels=listing.own_kernels,
    )


def _ops_by_suspicion(site: str, effects: Sequence[Effect]) -> tuple[str, ...]:
    by_op: dict[str, list[Effect]] = {}
    for effect in effects:
        by_op.setdefault(effect.op, []).append(effect)
    return tuple(f"{site}:{op}" for op in sorted(by_op, key=lambda op: -most_suspicious(by_op[op])))


def _override_key(site: str) -> str:
    """Return the override that keeps a site wide; the model's own code has no name but its ops."""
    return f"{MODEL_SITE}:*" if site == MODEL_SITE else site


def _matches(site: str, patterns: Sequence[str]) -> bool:
    parts = site.split(".")
    outer = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns for each in outer)


# == Measures one step of a training in fp32, once per bisection, to know whom to suspect first.

_MEASURED_STEPS = (2, 0)
"""The first step tells little where something starts at zero, but a later one may never come."""


def measure_suspects(trials: TrialRunner, *, fmt: str, on_event: OnEvent) -> Sensitivity | None:
    """Return the measured step of a training, kept or measured now; None if it cannot be measured, which is told."""
    path = trials.folder.path / "sensitivity.json"
    if path.exists():
        on_event(BisectEvent(what="one step measured", verdict="", is_new=False))
        return Sensitivity.from_object(read_json_object(path))
    why = ""
    for step in _MEASURED_STEPS:
        task = measurement_task(trials.subject, formats=(fmt,), step=step, folder=trials.folder.path / "measured")
        try:
            measured: Sensitivity = trials.run(task).sensitivity
        except TrialError as error:
            why = why or str(error).partition("why: ")[2].partition("\n")[0]
            continue
        write_atomically(path, to_json(measured.to_object()).encode())
        on_event(BisectEvent(what=f"step {step} measured in fp32, to know whom to suspect first", verdict=""))
        return measured
    on_event(BisectEvent(what="no step could be measured, so nobody is suspected first", verdict=why))
    return None


def list_ops(trials: TrialRunner, change: SubstitutedSites, *, on_event: OnEvent) -> Candidates:
    """Return the ops of one step, those that differ most from the other implementation first."""
    file = (trials.folder.path / "listing.json").absolute()
    is_new = not file.exists()
    if is_new:
        result = trials.apart(change.listing(str(file)))
        if result.exit_code and not file.exists():
            raise BisectError.explain(
                f"`{trials.subject.name}` fails by itself: exit code {result.exit_code}.",
                why=f"it ended before its first step was over{quote_log(result.folder)}",
                fix="see that it runs.",
            )
    candidates = candidates_from_listing(read_listing(file))
    number = sum(map(len, candidates.ops.values()))
    on_event(BisectEvent(what=f"{number} ops of one step, each beside {change.good_name}", verdict="", is_new=is_new))
    return candidates


def narrow_format(recipe: Recipe) -> str:
    """Return the format that a recipe gives to what it narrows."""
    return recipe.operands.forward if recipe.compute == "operands" else recipe.compute_format


def supports_op_overrides(recipe: Recipe) -> bool:
    """Whether a recipe can treat an op of a site in its own way."""
    return recipe.compute not in ("autocast", "fixed") and recipe.arithmetic != "native"


# == What a bisection searches: what is done to sites, which sites there are, and the recipe that is bad.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What there is to search among."""

    candidates: Candidates
    recipe: Recipe | None = None
    """The bad one, as it was applied; None where that is not known or beside the question."""


def make_change(options: BisectOptions) -> WideSites | SubstitutedSites:
    """Return what is done to chosen sites.

    Raises:
        BisectError, RecipeError: a recipe does not exist, or cannot be given to a site.
    """
    bad = None if options.bad is None else _resolve_recipe(options.bad)
    if options.substitute is not None:
        return SubstitutedSites(bad=bad, good_name=options.substitute, switches=options.switches)
    good = find_recipe(options.good)
    if good.compute not in ("plain", "cast"):
        raise BisectError.explain(
            f"Sites cannot be given the recipe '{options.good}'.",
            why=f"a site takes a format, and '{options.good}' has several.",
            fix="--good fp32, bf16 or half",
        )
    return WideSites(
        bad=bad, good=_resolve_recipe(options.good), good_name=good.compute_format, switches=options.switches
    )


def _resolve_recipe(recipe: str) -> str:
    """Return a recipe as a process anywhere finds it, or raise that there is none."""
    find_recipe(recipe)
    return str(Path(recipe).absolute()) if recipe.endswith(".toml") else recipe


def check_command(subject: TrialTarget, options: BisectOptions) -> None:
    """Raise if it is a command whose sites nobody can know."""
    if isinstance(subject, CommandTarget) and not options.sites and not options.auto:
        raise _sites_needed_error(subject)


def check_sites(trials: TrialRunner, change: WideSites | SubstitutedSites, options: BisectOptions) -> None:
    """Raise if the model has no site of a name that was asked for: one step tells, before any whole training."""
    as_it_is = change.setting(())
    if not options.sites or isinstance(trials.subject, CommandTarget) or trials.is_kept(as_it_is):
        return
    if isinstance(change, SubstitutedSites):  # its sites are those of the ops, which one step lists anyway
        return
    first_step = trials.apart(replace(as_it_is, steps=1))
    applied = read_applied_recipes(first_step.folder / APPLIED_NAME) if first_step.folder is not None else []
    if applied:
        Candidates(modules=(*applied[0].sites, f"{MODEL_SITE}:*")).only(options.sites)


def find_scope(
    trials: TrialRunner,
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
    if isinstance(subject, CommandTarget):
        if not options.sites:
            raise _sites_needed_error(subject)
        return Scope(candidates=Candidates(modules=options.sites))
    if isinstance(change, SubstitutedSites):
        return Scope(candidates=list_ops(trials, change, on_event=on_event).only(options.sites))
    applied = _read_applied_recipe(subject, bad)
    recipe = from_toml(applied.recipe_toml, where="the training's recipe", named=recipe_named)
    measured = measure_suspects(trials, fmt=narrow_format(recipe), on_event=on_event)
    if measured is not None:
        candidates = candidates_from_step(measured, sites=applied.sites, fmt=narrow_format(recipe))
    else:
        candidates = candidates_from_names(applied.sites)
    if not supports_op_overrides(recipe):
        candidates = candidates.without_ops()
    return Scope(candidates=candidates.only(options.sites), recipe=recipe)


def calls_apply_recipe(bad: TrialResult) -> bool:
    """Whether formats of single sites reach the training."""
    return bad.folder is not None and bool(read_applied_recipes(bad.folder / APPLIED_NAME))


def _sites_needed_error(subject: CommandTarget) -> BisectError:
    return BisectError.explain(
        f"Which sites of `{subject.name}`?",
        why="a command tells nothing of its sites.",
        fix="--sites a,b,c or --sites FILE; a Python script is named without `python` in front of it.",
    )


def _read_applied_recipe(subject: TrialTarget, bad: TrialResult) -> RecipeApplication:
    assert bad.folder is not None
    calls = read_applied_recipes(bad.folder / APPLIED_NAME)
    if calls:
        return calls[0]
    if bad.exit_code:
        raise BisectError.explain(
            f"`{subject.name}` fails by itself: exit code {bad.exit_code}.",
            why=f"it ended before it called apply_recipe{quote_log(bad.folder)}",
            fix="see that it runs.",
        )
    raise BisectError.explain(
        f"`{subject.name}` never calls apply_recipe.",
        why="formats of single sites reach a script through it, so there is nothing to search.",
        fix="add `model, optimizer = roundoff.apply_recipe(model, optimizer, 'half')`, or search by --switch "
        "substitute=fp64, which needs no such call.",
    )
