"""The registry of rules: every module in a family folder that lists `RULES`, in the order of the decision."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from roundoff.diagnose import data, loop, loss, model, nonfinite, numbers, process, ranks
from roundoff.diagnose.rule import Code, Effect, Rule

FAMILIES: Mapping[str, ModuleType] = {
    "NaN and infinity": nonfinite,
    "Numbers and formats": numbers,
    "The training loop": loop,
    "The loss": loss,
    "The model": model,
    "The data": data,
    "Several ranks": ranks,
    "The process": process,
}
"""The folders of rules, by the title that their codes have in the docs."""


def discover_rules(families: Iterable[ModuleType]) -> tuple[Rule, ...]:
    """Import every module of the given packages and return the rules they list, in the order of the decision."""
    modules = [
        importlib.import_module(f"{family.__name__}.{entry.name}")
        for family in families
        for entry in pkgutil.iter_modules(family.__path__)
    ]
    rules = sorted((rule for module in modules for rule in getattr(module, "RULES", ())), key=lambda rule: rule.order)
    for earlier, later in itertools.pairwise(rules):
        assert earlier.order != later.order, f"two rules at {later.order}: {earlier.checks}; {later.checks}"
    return tuple(rules)


def codes_of(rules: Iterable[Rule]) -> tuple[Code, ...]:
    """Return the codes of some rules, in their order."""
    return tuple(code for rule in rules for code in rule.codes)


def causes_by_code(rules: Sequence[Rule]) -> dict[str, frozenset[str]]:
    """Return for each code that may be a consequence the codes that explain it, with effects resolved."""
    found: dict[str, frozenset[str]] = {}
    for rule in rules:
        others = codes_of(other for other in rules if other is not rule)
        for code in rule.codes:
            named = {cause for cause in code.follows_from if isinstance(cause, str)}
            effects = {cause for cause in code.follows_from if isinstance(cause, Effect)}
            known = {other.name for other in codes_of(rules) if effects.intersection(other.leads_to)}
            if Effect.ANY in effects:
                known |= {other.name for other in others}
            if code.follows_from:
                found[code.name] = frozenset((named | known) - {code.name})
    return found


RULES = discover_rules(FAMILIES.values())
"""All rules that need no reference run, in the order of the decision."""

PROCEDURE = tuple(code.name for code in codes_of(RULES))
"""Every code, in the order of the decision."""
