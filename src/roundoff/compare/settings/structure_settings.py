"""What two trainings were made of: optimizers, modules and their settings, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roundoff.compare.settings.setting_difference import (
    SettingDifference,
    SettingKind,
    differing_values,
    group_by_place,
)
from roundoff.runs import JsonValue, ModuleFacts, OptimizerFacts, ParameterFacts, Run, Structure
from roundoff.words import join_names

_HOW_NOT_WHAT = ("capturable", "differentiable", "foreach", "fused")
"""Settings of an optimizer that change how it computes, and the result by rounding at most."""
_MAX_NAMES = 5


def structure_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare what the runs were made of as training began; nothing where one does not say."""
    reference_structures, candidate_structures = reference.structures()[:1], candidate.structures()[:1]
    if not reference_structures or not candidate_structures:
        return []
    return group_by_place([
        *_optimizers(reference_structures[0], candidate_structures[0]),
        *_modules(reference_structures[0], candidate_structures[0]),
        *_parameters(reference_structures[0], candidate_structures[0]),
    ])  # fmt: skip


def _optimizers(reference: Structure, candidate: Structure) -> Iterator[SettingDifference]:
    if len(reference.optimizers) != len(candidate.optimizers):
        yield _hyperparameter("number of optimizers", len(reference.optimizers), len(candidate.optimizers))
    for first, second in zip(reference.optimizers, candidate.optimizers, strict=False):
        yield from _optimizer(first, second)


def _optimizer(reference: OptimizerFacts, candidate: OptimizerFacts) -> Iterator[SettingDifference]:
    is_same = reference.name.partition("#")[0] == candidate.name.partition("#")[0]
    if not is_same:
        yield _hyperparameter("optimizer", reference.name, candidate.name)
    if reference.has_state != candidate.has_state:
        yield _hyperparameter(
            f"state of {reference.name} before its first step", reference.has_state, candidate.has_state
        )
    if reference.recipe != candidate.recipe:
        yield from _recipe(reference.recipe, candidate.recipe)
    if len(reference.groups) != len(candidate.groups):
        yield _hyperparameter(f"parameter groups of {reference.name}", len(reference.groups), len(candidate.groups))
    for nth, (first, second) in enumerate(zip(reference.groups, candidate.groups, strict=False)):
        of = f"{reference.name}, group {nth}" if len(reference.groups) > 1 else reference.name
        yield from _group(first, second, of=of, is_same=is_same)


def _group(
    reference: Mapping[str, JsonValue], candidate: Mapping[str, JsonValue], *, of: str, is_same: bool
) -> Iterator[SettingDifference]:
    """Yield the settings of a group that differ; of optimizers of two classes those that both have."""
    differing = differing_values(reference, candidate)
    names = {name for name, _, _ in differing}
    for name, first, second in differing:
        if name == "initial_lr" and "lr" in names:
            continue
        if name not in reference or name not in candidate:
            if is_same:
                told = (values.get(name, "not a setting") for values in (reference, candidate))
                yield _hyperparameter(f"{name} of {of}", *told, suspicion=0.5)
        elif name == "betas" and isinstance(first, list | tuple) and isinstance(second, list | tuple):
            pairs = enumerate(zip(first, second, strict=False), start=1)
            yield from (_hyperparameter(f"beta{nth} of {of}", a, b) for nth, (a, b) in pairs if a != b)
        else:
            suspicion = 0.2 if name in _HOW_NOT_WHAT else 0.9
            yield _hyperparameter(f"{name} of {of}", first, second, suspicion=suspicion)


def _hyperparameter(
    what: str, reference: JsonValue, candidate: JsonValue, *, suspicion: float = 0.9
) -> SettingDifference:
    kind = SettingKind.HYPERPARAMETER
    return SettingDifference(what=what, reference=reference, candidate=candidate, kind=kind, suspicion=suspicion)


def _recipe(reference: str | None, candidate: str | None) -> Iterator[SettingDifference]:
    """Yield the lines of two recipes that differ, or which run has none."""
    if reference is None or candidate is None:
        first, second = ("none" if text is None else _name_of(text) for text in (reference, candidate))
        yield SettingDifference(
            what="recipe", reference=first, candidate=second, kind=SettingKind.RECIPE, suspicion=0.85
        )
        return
    first_lines, second_lines = _lines(reference), _lines(candidate)
    for name, first_value, second_value in differing_values(first_lines, second_lines):
        yield SettingDifference(
            what=f"recipe: {name}",
            reference=first_value,
            candidate=second_value,
            kind=SettingKind.RECIPE,
            suspicion=0.85,
        )


def _name_of(recipe: str) -> str:
    return str(_lines(recipe).get("name", "one")).strip('"')


def _lines(recipe: str) -> dict[str, JsonValue]:
    """Return the values of a TOML text by table and key; one line each is all that is needed here."""
    found: dict[str, JsonValue] = {}
    table = ""
    for line in recipe.splitlines():
        if line.startswith("["):
            table = f"{line.strip('[] ')}."
        elif "=" in line:
            key, _, value = line.partition("=")
            found[f"{table}{key.strip()}"] = value.strip()
    return found


def _modules(reference: Structure, candidate: Structure) -> Iterator[SettingDifference]:
    first, second = _by_site(reference), _by_site(candidate)
    for site in [site for site in first if site in second]:
        yield from _module(first[site], second[site])
    yield from _only_in("modules", list(first), list(second))


def _by_site(structure: Structure) -> dict[str, ModuleFacts]:
    return {module.site: module for module in structure.modules}


def _module(reference: ModuleFacts, candidate: ModuleFacts) -> Iterator[SettingDifference]:
    if reference.kind != candidate.kind:
        yield _of_model("class of module", reference.kind, candidate.kind, place=reference.site)
        return
    if reference.training != candidate.training:
        modes = ("train" if facts.training else "eval" for facts in (reference, candidate))
        yield _of_model(f"mode of {reference.kind}", *modes, place=reference.site)
    if reference.has_start_statistics != candidate.has_start_statistics:
        what = f"statistics of {reference.kind} are still as it was made"
        yield _of_model(what, reference.has_start_statistics, candidate.has_start_statistics, place=reference.site)
    for name, first, second in differing_values(reference.settings, candidate.settings):
        yield _of_model(f"{name} of {reference.kind}", first, second, place=reference.site)


def _parameters(reference: Structure, candidate: Structure) -> Iterator[SettingDifference]:
    first, second = _by_name(reference), _by_name(candidate)
    for name in [name for name in first if name in second]:
        yield from _parameter(first[name], second[name], name=name)
    yield from _only_in("parameters", list(first), list(second))


def _by_name(structure: Structure) -> dict[str, ParameterFacts]:
    return {facts.name: facts for facts in structure.parameters if facts.name is not None}


def _parameter(reference: ParameterFacts, candidate: ParameterFacts, *, name: str) -> Iterator[SettingDifference]:
    if reference.shape != candidate.shape:
        yield _of_model("shape of parameter", list(reference.shape), list(candidate.shape), place=name)
    if reference.dtype != candidate.dtype:
        yield _of_model("dtype of parameters", reference.dtype, candidate.dtype, place=name)
    if reference.requires_grad != candidate.requires_grad:
        yield _of_model("requires_grad of parameters", reference.requires_grad, candidate.requires_grad, place=name)
    if bool(reference.optimizers) != bool(candidate.optimizers):
        yield _of_model("held by an optimizer", bool(reference.optimizers), bool(candidate.optimizers), place=name)
    if reference.tied_to != candidate.tied_to:
        yield _of_model("tied to", reference.tied_to, candidate.tied_to, place=name)


def _only_in(noun: str, reference: list[str], candidate: list[str]) -> Iterator[SettingDifference]:
    """Say which names one run alone has."""
    first = [name for name in reference if name not in set(candidate)]
    second = [name for name in candidate if name not in set(reference)]
    if first or second:
        yield _of_model(
            f"{noun} that only one run has",
            (join_names(first, at_most=_MAX_NAMES) or "none"),
            (join_names(second, at_most=_MAX_NAMES) or "none"),
            suspicion=0.8,
        )


def _of_model(
    what: str, reference: JsonValue, candidate: JsonValue, *, place: str | None = None, suspicion: float = 0.9
) -> SettingDifference:
    places = (place,) if place is not None else ()
    kind = SettingKind.MODEL
    return SettingDifference(
        what=what, reference=reference, candidate=candidate, kind=kind, suspicion=suspicion, places=places
    )
