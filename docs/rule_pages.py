"""Writes the page of a rule, and the list of all rules, from what the rules themselves say."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path

from roundoff.diagnose.explained import EXPLANATIONS, FAMILIES
from roundoff.diagnose.rules import FOLLOWS_FROM, PROCEDURE, RULES, Rule

FAULTS = Path(__file__).parents[1] / "tests" / "faults"


def page_of_rule(code: str) -> str:
    """Return the page of one code: what it means, how it is detected, how to fix it, and a training that has it."""
    explanation = EXPLANATIONS[code]
    parts = [
        f"# {code}",
        explanation.means,
        f"## How it is detected\n\n{_detection(code)}",
        f"## How to fix it\n\n{explanation.fix}",
        _consequences(code),
        _planted(code),
        f"---\n\n{_place(code)} [All rules](index.md) · [My training is wrong, what now?](../my-training-is-wrong.md)",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def index_of_rules() -> str:
    """Return the list of all codes by family, each with the first sentence of what it means."""
    parts = [
        "# The rules",
        f"`roundoff run` and `roundoff diagnose` hold a training against these {len(EXPLANATIONS)} rules. Each finding "
        "carries the code of one; `roundoff diagnose RUN --explain` lists those that found nothing.",
    ]
    for family in FAMILIES:
        rows = [f"| [`{code}`]({code}.md) | {_first_sentence(e.means)} |" for code, e in family.explanations.items()]
        parts.append("\n".join([f"## {family.title}\n", "| code | what it means |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _detection(code: str) -> str:
    rule = _rule_of(code)
    told = EXPLANATIONS[code].detected
    if rule is None:
        return f"{told} See [comparing runs](../comparing-runs.md)."
    others = [other for other in rule.codes if other != code]
    beside = f"The same look at a run finds {_links(others)}." if others else ""
    task = f"Its task, as the code says it: {_without_breaks(inspect.getdoc(rule.find) or '')}"
    return "\n\n".join(part for part in (f"Looked at: {rule.checks}. {told}".strip(), task, beside) if part)


def _without_breaks(text: str) -> str:
    return " ".join(text.split())


def _consequences(code: str) -> str:
    causes = [cause for cause in FOLLOWS_FROM.get(code, ()) if cause in EXPLANATIONS]
    effects = [effect for effect, known in FOLLOWS_FROM.items() if code in known]
    told = []
    if causes and len(causes) < len(PROCEDURE) // 2:
        told.append(f"It may be a consequence of {_links(causes)}; the cause is then named first.")
    elif causes:
        told.append("It is named first only where no other rule knows the cause.")
    if effects:
        told.append(f"It explains {_links(effects)}, which are then told below it.")
    return "## What goes with it\n\n" + "\n\n".join(told) if told else ""


def _planted(code: str) -> str:
    plant = _plants().get(code)
    if plant is None:
        return ""
    text = (FAULTS / f"{plant}.py").read_text().rstrip()
    return f"## A training that has it\n\nOne of the scripts that the rule is tested with:\n\n```python\n{text}\n```"


def _plants() -> Mapping[str, str]:
    """Return for each rule the first script of the fault suite in which it must be found."""
    tables = tomllib.loads((FAULTS / "expected.toml").read_text())
    return {table["rule"]: name for name, table in reversed(tables.items()) if "rule" in table}


def _place(code: str) -> str:
    if code not in PROCEDURE:
        return "Told after all other rules, where there is a reference."
    return f"Number {PROCEDURE.index(code) + 1} of {len(PROCEDURE)} in the order of the decision."


def _rule_of(code: str) -> Rule | None:
    return next((rule for rule in RULES if code in rule.codes), None)


def _links(codes: list[str]) -> str:
    return ", ".join(f"[`{code}`]({code}.md)" for code in codes)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."
