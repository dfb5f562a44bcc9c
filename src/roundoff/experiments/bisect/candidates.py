"""The candidates of a bisection: the sites and ops that may be the cause, the most suspicious first."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Self

from roundoff.errors import BisectError, TrialError
from roundoff.experiments.bisect.bisect_options import BisectEvent, BisectOptions, OnEvent, SiteChange, SubstitutedSites
from roundoff.experiments.trials.measurement import measurement_task
from roundoff.experiments.trials.runner import TrialRunner, quote_log
from roundoff.experiments.trials.targets import CommandTarget
from roundoff.experiments.trials.trial import APPLIED_NAME, TrialResult, TrialTarget
from roundoff.files import write_atomically
from roundoff.precision import Recipe
from roundoff.precision.recipe.named_recipes import recipe_named
from roundoff.precision.recipe.recipe_environment import RecipeApplication, read_applied_recipes
from roundoff.precision.recipe.toml import from_toml
from roundoff.runs import to_json
from roundoff.runs.files.plain_json import read_json_object
from roundoff.runs.records.event import MODEL
from roundoff.sensitivity.effects import LossEffect, Sensitivity, most_suspicious
from roundoff.switches import Listing, read_listing
from roundoff.words import join_words

_MAX_SHOWN = 6
_MIN_ULPS = 16.0
"""An op that differs less from another implementation is good: kernels add up in different orders."""
_HOLDERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Modules that only contain others and compute nothing themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What may be the cause, named as in overrides: modules, and the ops inside each."""

    modules: tuple[str, ...]
    """The most suspicious first."""
    ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The ops of each module's own code, `blocks.1.attn:softmax`, the most suspicious first; empty if not measured."""
    is_measured: bool = False
    """Whether their order comes from a measured step."""
    covers_inner: bool = True
    """Whether changing a module also changes the modules inside it."""
    own_kernels: tuple[str, ...] = ()
    """Operators among them for which the other implementation runs the same kernel."""
    largest_difference: str = ""
    """Which op differs most from the other implementation, and by how much, if rounding does not explain that."""

    def inside(self, modules: Iterable[str]) -> tuple[str, ...]:
        """Return the ops of these modules: the most suspicious of each module first, then the second ones."""
        sites = dict.fromkeys(site for module in modules for site in self._sites_with_ops(module))
        in_turn = zip_longest(*(self.ops[site] for site in sites))
        return tuple(op for ops in in_turn for op in ops if op is not None)

    def _sites_with_ops(self, module: str) -> list[str]:
        inner = [site for site in self.ops if self.covers_inner and site.startswith(f"{module}.")]
        return [module, *inner] if module in self.ops else inner

    def without_ops(self) -> Self:
        """Return the modules alone, for recipes that do not support overrides of single ops."""
        modules = tuple(module for module in self.modules if ":" not in module)
        return replace(self, modules=modules, ops={})

    def only(self, patterns: Sequence[str]) -> Self:
        """Return those that match a pattern, `blocks.*.attn`, with what is inside them; all if there is no pattern.

        Raises:
            BisectError: a pattern matches nothing.
        """
        if not patterns:
            return self
        for pattern in patterns:
            if not any(_matches(site, [pattern]) for site in self.modules):
                raise BisectError.explain(
                    f"--sites {pattern} matches no site.",
                    why=f"the sites are {join_words(self.modules, at_most=_MAX_SHOWN)}.",
                )
        return replace(self, modules=tuple(site for site in self.modules if _matches(site, patterns)))


def candidates_from_names(sites: Mapping[str, str]) -> Candidates:
    """Return the modules of a model from their names and classes: the innermost first, in the order of the model.

    Modules that only contain others are left out.
    """
    computing = [site for site, kind in sites.items() if kind not in _HOLDERS]
    holders = {site.rpartition(".")[0] for site in sites}
    inner = [site for site in computing if site not in holders]
    outer = sorted((site for site in computing if site in holders), key=lambda site: -site.count("."))
    return Candidates(modules=(*inner, *outer))


def candidates_from_step(measured: Sensitivity, *, sites: Mapping[str, str], fmt: str) -> Candidates:
    """Return the modules that rounding to a format affects, ordered by the effects in a measured step.

    These are only modules of `sites`, which an override can name, and the code of the model itself.
    """
    by_site: dict[str, list[LossEffect]] = {}
    for effect in measured.of(fmt):
        by_site.setdefault(effect.site, []).append(effect)
    named = {site: effects for site, effects in by_site.items() if site in sites or site == MODEL}
    ops = {site: _ops_by_suspicion(site, effects) for site, effects in named.items()}
    suspected = sorted(named, key=lambda site: -most_suspicious(named[site]))
    # The model's own code can only be named by its ops.
    modules = tuple(f"{MODEL}:*" if site == MODEL else site for site in suspected)
    return Candidates(modules=modules, ops=ops, is_measured=True)


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
        largest_difference=_largest_difference(listing),
    )


def _largest_difference(listing: Listing) -> str:
    measured = [op for op in listing.ops if op.max_ulps is not None and op.max_ulps > _MIN_ULPS]
    if not measured:
        return ""
    op = max(measured, key=lambda op: op.max_ulps or 0.0)
    return f"{op.key} differs by {op.max_ulps:.3g} ulps from the other implementation"


def _ops_by_suspicion(site: str, effects: Sequence[LossEffect]) -> tuple[str, ...]:
    by_op: dict[str, list[LossEffect]] = {}
    for effect in effects:
        by_op.setdefault(effect.op, []).append(effect)
    return tuple(f"{site}:{op}" for op in sorted(by_op, key=lambda op: -most_suspicious(by_op[op])))


def _matches(site: str, patterns: Sequence[str]) -> bool:
    parts = site.split(".")
    outer = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns for each in outer)


_MEASURED_STEPS = (2, 0)
"""The first step says little where something starts at zero, but a later one may never be reached."""


def measure_suspects(trials: TrialRunner, *, fmt: str, on_event: OnEvent) -> Sensitivity | None:
    """Return a measured step of the training, stored or measured now; None if it cannot be measured."""
    path = trials.folder.path / "sensitivity.json"
    if path.exists():
        on_event(BisectEvent(what="measured one step", verdict="", is_new=False))
        return Sensitivity.from_object(read_json_object(path))
    why = ""
    for step in _MEASURED_STEPS:
        task = measurement_task(trials.target, formats=(fmt,), step=step, folder=trials.folder.path / "measured")
        try:
            measured: Sensitivity = trials.run_task(task).sensitivity
        except TrialError as error:
            why = why or str(error).partition("why: ")[2].partition("\n")[0]
            continue
        write_atomically(path, to_json(measured.to_object()).encode())
        on_event(
            BisectEvent(what=f"measured step {step} in fp32, to search the most suspicious sites first", verdict="")
        )
        return measured
    on_event(BisectEvent(what="no step could be measured, so the sites are searched in their own order", verdict=why))
    return None


def list_ops(trials: TrialRunner, change: SubstitutedSites, *, on_event: OnEvent) -> Candidates:
    """Return the ops of one step, those that differ most from the other implementation first."""
    file = (trials.folder.path / "listing.json").absolute()
    is_new = not file.exists()
    if is_new:
        result = trials.run_uncounted(change.listing(str(file)))
        if result.exit_code and not file.exists():
            raise BisectError.explain(
                f"`{trials.target.name}` fails on its own: exit code {result.exit_code}.",
                why=f"it ended before the end of its first step{quote_log(result.folder)}",
                fix="check that it runs on its own.",
            )
    candidates = candidates_from_listing(read_listing(file))
    number = sum(map(len, candidates.ops.values()))
    on_event(BisectEvent(what=f"compared {number} ops of one step with {change.good_name}", verdict="", is_new=is_new))
    return candidates


def narrow_format(recipe: Recipe) -> str:
    """Return the narrow format of a recipe."""
    return recipe.operands.forward if recipe.compute == "operands" else recipe.compute_format


def check_command(target: TrialTarget, options: BisectOptions) -> None:
    """Raise if the target is a command and its sites are not given."""
    if isinstance(target, CommandTarget) and not options.sites and not options.auto:
        raise _sites_needed_error(target)


def check_sites(trials: TrialRunner, change: SiteChange, options: BisectOptions) -> None:
    """Raise if a requested site does not exist; one step shows that, before any whole training."""
    as_it_is = change.setting(())
    if not options.sites or isinstance(trials.target, CommandTarget) or trials.is_known(as_it_is):
        return
    if isinstance(change, SubstitutedSites):  # its sites come from the listing of one step, which is made anyway
        return
    first_step = trials.run_uncounted(replace(as_it_is, steps=1))
    applied = read_applied_recipes(first_step.folder / APPLIED_NAME) if first_step.folder is not None else []
    if applied:
        Candidates(modules=(*applied[0].sites, f"{MODEL}:*")).only(options.sites)


def find_candidates(
    trials: TrialRunner,
    bad: TrialResult,
    change: SiteChange,
    options: BisectOptions,
    *,
    on_event: OnEvent,
) -> tuple[Candidates, Recipe | None]:
    """Return the sites to search, the most suspicious first, and the recipe that the bad run applied, if known.

    Raises:
        BisectError: the sites of the training are not known.
    """
    target = trials.target
    if isinstance(target, CommandTarget):
        if not options.sites:
            raise _sites_needed_error(target)
        return Candidates(modules=options.sites), None
    if isinstance(change, SubstitutedSites):
        return list_ops(trials, change, on_event=on_event).only(options.sites), None
    applied = _read_applied_recipe(target, bad)
    recipe = from_toml(applied.recipe_toml, where="the training's recipe", named=recipe_named)
    measured = measure_suspects(trials, fmt=narrow_format(recipe), on_event=on_event)
    if measured is not None:
        candidates = candidates_from_step(measured, sites=applied.sites, fmt=narrow_format(recipe))
    else:
        candidates = candidates_from_names(applied.sites)
    if recipe.compute in ("autocast", "fixed") or recipe.arithmetic == "native":  # no formats for single ops
        candidates = candidates.without_ops()
    return candidates.only(options.sites), recipe


def calls_apply_recipe(bad: TrialResult) -> bool:
    """Whether the training calls `apply_recipe`, so that formats of single sites take effect."""
    return bad.folder is not None and bool(read_applied_recipes(bad.folder / APPLIED_NAME))


def _sites_needed_error(target: CommandTarget) -> BisectError:
    return BisectError.explain(
        f"--sites is needed to bisect `{target.name}`.",
        why="the sites of a command are not known.",
        fix="--sites a,b,c or --sites FILE; for a Python script leave out `python`.",
    )


def _read_applied_recipe(target: TrialTarget, bad: TrialResult) -> RecipeApplication:
    assert bad.folder is not None
    calls = read_applied_recipes(bad.folder / APPLIED_NAME)
    if calls:
        return calls[0]
    if bad.exit_code:
        raise BisectError.explain(
            f"`{target.name}` fails on its own: exit code {bad.exit_code}.",
            why=f"it ended before it called apply_recipe{quote_log(bad.folder)}",
            fix="check that it runs on its own.",
        )
    raise BisectError.explain(
        f"`{target.name}` never calls apply_recipe.",
        why="only through it can single sites take another format.",
        fix="add `model, optimizer = roundoff.apply_recipe(model, optimizer, 'half')`, or search with --switch "
        "substitute=fp64, which does not need it.",
    )
