"""Compares what two trainings are made of: optimizers, modules, parameters and their start values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from roundoff.compare.initialisers import MIN_VALUES, is_uniform, known_initialiser
from roundoff.compare.settings.setting_difference import (
    SettingDifference,
    SettingKind,
    differing_values,
    group_by_place,
)
from roundoff.runs import JsonValue, ModuleFacts, OptimizerFacts, ParameterFacts, Run, Structure, shape_from_text
from roundoff.words import join_names

_HOW_NOT_WHAT = ("capturable", "differentiable", "foreach", "fused")
"""Settings of an optimizer that change how it computes, and the result at most by rounding."""
_MAX_NAMES = 5


def structure_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare what the runs were made of as training began; empty if one of them does not say."""
    for first, second in zip(reference.structures()[:1], candidate.structures()[:1], strict=False):
        return group_by_place([*_optimizers(first, second), *_modules(first, second), *_parameters(first, second)])
    return []


def _optimizers(reference: Structure, candidate: Structure) -> Iterator[SettingDifference]:
    if len(reference.optimizers) != len(candidate.optimizers):
        yield hyperparameter("number of optimizers", len(reference.optimizers), len(candidate.optimizers))
    for first, second in zip(reference.optimizers, candidate.optimizers, strict=False):
        yield from _optimizer(first, second)


def _optimizer(reference: OptimizerFacts, candidate: OptimizerFacts) -> Iterator[SettingDifference]:
    is_same = reference.name.partition("#")[0] == candidate.name.partition("#")[0]
    if not is_same:
        yield hyperparameter("optimizer", reference.name, candidate.name)
    if reference.has_state != candidate.has_state:
        yield hyperparameter(
            f"state of {reference.name} before its first step", reference.has_state, candidate.has_state
        )
    if reference.recipe != candidate.recipe:
        yield from _recipe(reference.recipe, candidate.recipe)
    if len(reference.groups) != len(candidate.groups):
        yield hyperparameter(f"parameter groups of {reference.name}", len(reference.groups), len(candidate.groups))
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
                values = (side.get(name, "not a setting") for side in (reference, candidate))
                yield hyperparameter(f"{name} of {of}", *values, suspicion=0.5)
        elif name == "betas" and isinstance(first, list | tuple) and isinstance(second, list | tuple):
            pairs = enumerate(zip(first, second, strict=False), start=1)
            yield from (hyperparameter(f"beta{nth} of {of}", a, b) for nth, (a, b) in pairs if a != b)
        else:
            suspicion = 0.2 if name in _HOW_NOT_WHAT else 0.9
            yield hyperparameter(f"{name} of {of}", first, second, suspicion=suspicion)


def hyperparameter(
    what: str, reference: JsonValue, candidate: JsonValue, *, suspicion: float = 0.9
) -> SettingDifference:
    """Return the difference of one hyperparameter."""
    return SettingDifference(what, reference, candidate, kind=SettingKind.HYPERPARAMETER, suspicion=suspicion)


def _recipe(reference: str | None, candidate: str | None) -> Iterator[SettingDifference]:
    """Yield the lines of two recipes that differ, or which run has none."""
    differing: list[tuple[str, JsonValue, JsonValue]]
    if reference is None or candidate is None:
        names = ["none" if text is None else str(_lines(text).get("name", "one")) for text in (reference, candidate)]
        differing = [("recipe", names[0].strip('"'), names[1].strip('"'))]
    else:
        lines = differing_values(_lines(reference), _lines(candidate))
        differing = [(f"recipe: {name}", first, second) for name, first, second in lines]
    for what, first, second in differing:
        yield SettingDifference(what, first, second, kind=SettingKind.RECIPE, suspicion=0.85)


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
    first, second = ({module.site: module for module in side.modules} for side in (reference, candidate))
    for site in [site for site in first if site in second]:
        yield from _module(first[site], second[site])
    yield from _only_in("modules", list(first), list(second))


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
    first, second = (
        {facts.name: facts for facts in side.parameters if facts.name is not None} for side in (reference, candidate)
    )
    for name in [name for name in first if name in second]:
        yield from _parameter(first[name], second[name], name=name)
    yield from _only_in("parameters", list(first), list(second))


def _parameter(reference: ParameterFacts, candidate: ParameterFacts, *, name: str) -> Iterator[SettingDifference]:
    first, second = _facts_to_compare(reference), _facts_to_compare(candidate)
    for what, *values in differing_values(first, second):
        yield _of_model(what, *values, place=name)


def _facts_to_compare(facts: ParameterFacts) -> dict[str, JsonValue]:
    return {
        "shape of parameter": list(facts.shape),
        "dtype of parameters": facts.dtype,
        "requires_grad of parameters": facts.requires_grad,
        "held by an optimizer": bool(facts.optimizers),
        "tied to": facts.tied_to,
    }


def _only_in(noun: str, reference: list[str], candidate: list[str]) -> Iterator[SettingDifference]:
    """Yield the names that only one run has."""
    first = [name for name in reference if name not in set(candidate)]
    second = [name for name in candidate if name not in set(reference)]
    if first or second:
        names = (join_names(side, at_most=_MAX_NAMES) or "none" for side in (first, second))
        what = f"{noun} that only one run has"
        kind = SettingKind.MODEL
        yield SettingDifference(what, *names, kind=kind, suspicion=0.8, about=(*first, *second))


def _of_model(
    what: str, reference: JsonValue, candidate: JsonValue, *, place: str | None = None, suspicion: float = 0.9
) -> SettingDifference:
    places = (place,) if place is not None else ()
    kind = SettingKind.MODEL
    return SettingDifference(what, reference, candidate, kind=kind, suspicion=suspicion, places=places)


def initialiser_of(shape: Sequence[int], *, mean: float | None, std: float | None, absmax: float | None) -> str:
    """Name the initialiser that start values look like.

    >>> initialiser_of((64, 16), mean=0.0, std=0.3, absmax=0.9)
    'normal 0.3'
    >>> initialiser_of((64,), mean=1.0, std=0.0, absmax=1.0)
    'ones'
    """
    if mean is None or std is None or absmax is None:
        return "unknown"
    if std <= 1e-7 * max(absmax, 1e-30):
        return {0.0: "zeros", 1.0: "ones"}.get(mean, f"constant {mean:.3g}")
    size = math.prod(shape)
    if size < MIN_VALUES:
        return f"mean {mean:.2g}, spread {std:.2g}"
    if abs(mean) > 6 * std / math.sqrt(size):
        return f"numbers around {mean:.2g} with spread {std:.2g}"
    if (known := known_initialiser(shape, mean=mean, std=std, absmax=absmax)) is not None:
        return known
    if is_uniform(std=std, absmax=absmax):
        return f"uniform +-{_format_number(math.sqrt(3) * std)}"
    return f"normal {_format_number(std)}"


def spreads_agree(size: int, reference: float, candidate: float) -> bool:
    """Return whether the spreads of two samples of `size` numbers differ by no more than chance."""
    allowed = 6 / math.sqrt(2 * max(size, 1))
    return reference == candidate or abs(reference - candidate) <= allowed * max(reference, candidate)


def _format_number(value: float) -> str:
    return f"{value:.1g}" if math.isclose(value, float(f"{value:.1g}"), rel_tol=0.05) else f"{value:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What is known about the start values of one parameter."""

    shape: tuple[int, ...]
    mean: float
    std: float
    absmax: float
    hash: int | None = None

    @property
    def looks_like(self) -> str:
        return initialiser_of(self.shape, mean=self.mean, std=self.std, absmax=self.absmax)

    def is_same(self, other: _Start) -> bool:
        if self.hash is not None and other.hash is not None:
            return self.hash == other.hash
        return (self.mean, self.std, self.absmax) == (other.mean, other.std, other.absmax)

    def is_drawn_alike(self, other: _Start) -> bool:
        size = math.prod(self.shape)
        if (self.absmax == 0) != (other.absmax == 0) or (self.std == 0) != (other.std == 0):
            return False
        spread = max(self.std, other.std)
        is_near = abs(self.mean - other.mean) <= 8 * spread / math.sqrt(max(size, 1))
        return is_near and spreads_agree(size, self.std, other.std)


def start_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare the start values of parameters that both runs have under one name and shape."""
    reference_starts, candidate_starts = _starts(reference), _starts(candidate)
    common = [name for name in reference_starts if name in candidate_starts]
    redrawn, initialisers = [], []
    for name in common:
        first, second = reference_starts[name], candidate_starts[name]
        if first.shape == second.shape and not first.is_same(second):
            if first.is_drawn_alike(second):
                redrawn.append(name)
            else:
                initialisers.append(_other_initialiser(name, first, second))
    found = group_by_place(initialisers)
    if redrawn:
        second_draw = f"another draw of the same kind, in {len(redrawn)} of {len(common)} parameters"
        found.append(_of_start("one draw", second_draw, suspicion=0.5, places=tuple(redrawn)))
    return found


def _other_initialiser(name: str, reference: _Start, candidate: _Start) -> SettingDifference:
    first, second = reference.looks_like, candidate.looks_like
    if first == second:
        first, second = (f"{first}, spread {start.std:.3g}" for start in (reference, candidate))
    return _of_start(first, second, suspicion=0.85, places=(name,))


def _of_start(reference: str, candidate: str, *, suspicion: float, places: tuple[str, ...]) -> SettingDifference:
    kind = SettingKind.START_VALUE
    return SettingDifference("start values", reference, candidate, kind=kind, suspicion=suspicion, places=places)


def _starts(run: Run) -> dict[str, _Start]:
    """Return the start values by parameter: as the watch noted them, else from the first recorded step."""
    noted = {
        facts.name: _Start(shape=facts.shape, mean=facts.mean, std=facts.std, absmax=facts.absmax)
        for structure in run.structures()[:1]
        for facts in structure.parameters
        if facts.name is not None and facts.mean is not None and facts.std is not None and facts.absmax is not None
    }
    return noted or (_read_recorded_starts(run) if 0 in run.steps else {})


def _read_recorded_starts(run: Run) -> dict[str, _Start]:
    columns = ["parameter", "shape", "num_elements", "mean", "l2", "min", "max", "hash"]
    rows = run.events(step=0, op="parameter", rank=0, columns=columns).to_list()
    found: dict[str, _Start] = {}
    for row in rows:
        if row["parameter"] is not None and row["parameter"] not in found and not math.isnan(row["mean"]):
            variance = row["l2"] ** 2 / max(row["num_elements"], 1) - row["mean"] ** 2
            found[row["parameter"]] = _Start(
                shape=shape_from_text(row["shape"]),
                mean=row["mean"],
                std=math.sqrt(max(variance, 0.0)),
                absmax=max(abs(row["min"]), abs(row["max"])),
                hash=row["hash"],
            )
    return found
