"""What two trainings were made of: optimizers and their settings, modules and theirs, parameters."""

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
    ours, theirs = reference.structures()[:1], candidate.structures()[:1]
    if not ours or not theirs:
        return []
    return group_by_place([
        *_optimizers(ours[0], theirs[0]),
        *_modules(ours[0], theirs[0]),
        *_parameters(ours[0], theirs[0]),
    ])  # fmt: skip


def _optimizers(ours: Structure, theirs: Structure) -> Iterator[SettingDifference]:
    if len(ours.optimizers) != len(theirs.optimizers):
        yield _hyperparameter("number of optimizers", len(ours.optimizers), len(theirs.optimizers))
    for first, second in zip(ours.optimizers, theirs.optimizers, strict=False):
        yield from _optimizer(first, second)


def _optimizer(ours: OptimizerFacts, theirs: OptimizerFacts) -> Iterator[SettingDifference]:
    is_same = ours.name.partition("#")[0] == theirs.name.partition("#")[0]
    if not is_same:
        yield _hyperparameter("optimizer", ours.name, theirs.name)
    if ours.has_state != theirs.has_state:
        yield _hyperparameter(f"state of {ours.name} before its first step", ours.has_state, theirs.has_state)
    if ours.recipe != theirs.recipe:
        yield from _recipe(ours.recipe, theirs.recipe)
    if len(ours.groups) != len(theirs.groups):
        yield _hyperparameter(f"parameter groups of {ours.name}", len(ours.groups), len(theirs.groups))
    for nth, (first, second) in enumerate(zip(ours.groups, theirs.groups, strict=False)):
        of = f"{ours.name}, group {nth}" if len(ours.groups) > 1 else ours.name
        yield from _group(first, second, of=of, is_same=is_same)


def _group(
    ours: Mapping[str, JsonValue], theirs: Mapping[str, JsonValue], *, of: str, is_same: bool
) -> Iterator[SettingDifference]:
    """Yield the settings of a group that differ; of optimizers of two classes those that both have."""
    differing = differing_values(ours, theirs)
    names = {name for name, _, _ in differing}
    for name, first, second in differing:
        if name == "initial_lr" and "lr" in names:
            continue
        if name not in ours or name not in theirs:
            if is_same:
                told = (values.get(name, "not a setting") for values in (ours, theirs))
                yield _hyperparameter(f"{name} of {of}", *told, suspicion=0.5)
        elif name == "betas" and isinstance(first, list | tuple) and isinstance(second, list | tuple):
            pairs = enumerate(zip(first, second, strict=False), start=1)
            yield from (_hyperparameter(f"beta{nth} of {of}", a, b) for nth, (a, b) in pairs if a != b)
        else:
            suspicion = 0.2 if name in _HOW_NOT_WHAT else 0.9
            yield _hyperparameter(f"{name} of {of}", first, second, suspicion=suspicion)


def _hyperparameter(what: str, ours: JsonValue, theirs: JsonValue, *, suspicion: float = 0.9) -> SettingDifference:
    kind = SettingKind.HYPERPARAMETER
    return SettingDifference(what=what, reference=ours, candidate=theirs, kind=kind, suspicion=suspicion)


def _recipe(ours: str | None, theirs: str | None) -> Iterator[SettingDifference]:
    """Yield the lines of two recipes that differ, or which run has none."""
    if ours is None or theirs is None:
        first, second = ("none" if text is None else _name_of(text) for text in (ours, theirs))
        yield SettingDifference(
            what="recipe", reference=first, candidate=second, kind=SettingKind.RECIPE, suspicion=0.85
        )
        return
    first_lines, second_lines = _lines(ours), _lines(theirs)
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


def _modules(ours: Structure, theirs: Structure) -> Iterator[SettingDifference]:
    first, second = _by_site(ours), _by_site(theirs)
    for site in [site for site in first if site in second]:
        yield from _module(first[site], second[site])
    yield from _only_in("modules", list(first), list(second))


def _by_site(structure: Structure) -> dict[str, ModuleFacts]:
    return {module.site: module for module in structure.modules}


def _module(ours: ModuleFacts, theirs: ModuleFacts) -> Iterator[SettingDifference]:
    if ours.kind != theirs.kind:
        yield _of_model("class of module", ours.kind, theirs.kind, place=ours.site)
        return
    if ours.training != theirs.training:
        modes = ("train" if facts.training else "eval" for facts in (ours, theirs))
        yield _of_model(f"mode of {ours.kind}", *modes, place=ours.site)
    if ours.has_start_statistics != theirs.has_start_statistics:
        what = f"statistics of {ours.kind} are still as it was made"
        yield _of_model(what, ours.has_start_statistics, theirs.has_start_statistics, place=ours.site)
    for name, first, second in differing_values(ours.settings, theirs.settings):
        yield _of_model(f"{name} of {ours.kind}", first, second, place=ours.site)


def _parameters(ours: Structure, theirs: Structure) -> Iterator[SettingDifference]:
    first, second = _by_name(ours), _by_name(theirs)
    for name in [name for name in first if name in second]:
        yield from _parameter(first[name], second[name], name=name)
    yield from _only_in("parameters", list(first), list(second))


def _by_name(structure: Structure) -> dict[str, ParameterFacts]:
    return {facts.name: facts for facts in structure.parameters if facts.name is not None}


def _parameter(ours: ParameterFacts, theirs: ParameterFacts, *, name: str) -> Iterator[SettingDifference]:
    if ours.shape != theirs.shape:
        yield _of_model("shape of parameter", list(ours.shape), list(theirs.shape), place=name)
    if ours.dtype != theirs.dtype:
        yield _of_model("dtype of parameters", ours.dtype, theirs.dtype, place=name)
    if ours.requires_grad != theirs.requires_grad:
        yield _of_model("requires_grad of parameters", ours.requires_grad, theirs.requires_grad, place=name)
    if bool(ours.optimizers) != bool(theirs.optimizers):
        yield _of_model("held by an optimizer", bool(ours.optimizers), bool(theirs.optimizers), place=name)
    if ours.tied_to != theirs.tied_to:
        yield _of_model("tied to", ours.tied_to, theirs.tied_to, place=name)


def _only_in(noun: str, ours: list[str], theirs: list[str]) -> Iterator[SettingDifference]:
    """Say which names one run alone has."""
    first = [name for name in ours if name not in set(theirs)]
    second = [name for name in theirs if name not in set(ours)]
    if first or second:
        yield _of_model(
            f"{noun} that only one run has",
            (join_names(first, at_most=_MAX_NAMES) or "none"),
            (join_names(second, at_most=_MAX_NAMES) or "none"),
            suspicion=0.8,
        )


def _of_model(
    what: str, ours: JsonValue, theirs: JsonValue, *, place: str | None = None, suspicion: float = 0.9
) -> SettingDifference:
    places = (place,) if place is not None else ()
    kind = SettingKind.MODEL
    return SettingDifference(what=what, reference=ours, candidate=theirs, kind=kind, suspicion=suspicion, places=places)
