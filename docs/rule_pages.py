"""Writes the page of each code, the index of all codes, and the lists of the checklist, from the rules themselves."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from roundoff.diagnose.against import AGAINST_CODES
from roundoff.diagnose.diagnosis import FAMILIES, RULES, causes_by_code, codes_of, discover_rules
from roundoff.diagnose.rule import Code, Rule

FAULTS = Path(__file__).parents[1] / "tests" / "faults"
QUESTION = re.compile(r"<!-- rules of question (\d+) -->")
CODES: Mapping[str, Code] = {code.name: code for code in (*codes_of(RULES), *AGAINST_CODES)}
"""Every code that has a page, by name."""


def page_of_code(name: str, *, rules: Sequence[Rule] = RULES) -> str:
    """Return the page of a code: what it means, how it is detected, how to fix it, and a training that has it."""
    rule = next((rule for rule in rules if name in _names(rule.codes)), None)
    code = next(code for code in (*codes_of(rules), *AGAINST_CODES) if code.name == name)
    parts = [
        f"# {name}",
        code.means,
        f"## How it is detected\n\n{_detection(code, rule)}",
        f"## How to fix it\n\n{code.fix}",
        _consequences(name, rules),
        _planted(name),
        f"---\n\n{_place(name, rules)} [All rules](index.md) · "
        "[My training is wrong, what now?](../my-training-is-wrong.md)",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def index_of_codes() -> str:
    """Return the list of all codes by family, each with the first sentence of what it means."""
    families = {title: codes_of(discover_rules([package])) for title, package in FAMILIES.items()}
    parts = [
        "# The rules",
        f"`roundoff run` and `roundoff diagnose` check a training for these {len(CODES)} faults. Each finding carries "
        "the code of one; `roundoff diagnose RUN --explain` lists what every rule answered: found, fine, or nothing to "
        "look at.",
    ]
    for title, codes in {**families, "Against a reference": AGAINST_CODES}.items():
        rows = [f"| [`{code.name}`]({code.name}.md) | {_first_sentence(code.means)} |" for code in codes]
        parts.append("\n".join([f"## {title}\n", "| code | what it means |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def fill_in_questions(markdown: str) -> str:
    """Replace the marker below each question of the checklist by its rules."""
    return QUESTION.sub(lambda marker: rules_of_question(int(marker[1])), markdown)


def rules_of_question(number: int, *, rules: Sequence[Rule] = RULES) -> str:
    """Return the rules of one question of the checklist as a list: what each checks, and its codes."""
    chosen = [rule for rule in rules if rule.order // 100 == number]
    return "\n".join(f"- {rule.checks}: {', '.join(f'`{name}`' for name in _names(rule.codes))}" for rule in chosen)


def _detection(code: Code, rule: Rule | None) -> str:
    if rule is None:
        return f"{code.detected} See [comparing runs](../comparing-runs.md)."
    others = [name for name in _names(rule.codes) if name != code.name]
    also = f"The same rule finds {_links(others)}." if others else ""
    task = f"From the code: {' '.join((inspect.getdoc(rule.find) or '').split())}"
    return "\n\n".join(part for part in (f"It checks {rule.checks}. {code.detected}".strip(), task, also) if part)


def _consequences(name: str, rules: Sequence[Rule]) -> str:
    order, table = _names(codes_of(rules)), causes_by_code(rules)
    causes = sorted(table.get(name, ()), key=order.index)
    effects = [effect for effect in order if name in table.get(effect, ())]
    parts = []
    if causes and len(causes) < len(order) // 2:
        parts.append(f"It may be a consequence of {_links(causes)}; then the cause is named first.")
    elif causes:
        parts.append("It is named first only if no other rule explains it.")
    if effects:
        parts.append(f"It explains {_links(effects)}, which are then listed below it.")
    return "## Related findings\n\n" + "\n\n".join(parts) if parts else ""


def _planted(name: str) -> str:
    fault = _faults().get(name)
    if fault is None:
        return ""
    text = (FAULTS / f"{fault}.py").read_text().rstrip()
    return f"## A training that has it\n\nOne of the scripts that test the rule:\n\n```python\n{text}\n```"


def _faults() -> Mapping[str, str]:
    """Return, by code, the first script of the fault suite in which it must be found."""
    tables = tomllib.loads((FAULTS / "expected.toml").read_text())
    return {table["rule"]: name for name, table in reversed(tables.items()) if "rule" in table}


def _place(name: str, rules: Sequence[Rule]) -> str:
    order = _names(codes_of(rules))
    if name not in order:
        return "Reported after all other rules, if there is a reference."
    return f"Number {order.index(name) + 1} of {len(order)} in the decision order."


def _names(codes: Iterable[Code]) -> list[str]:
    return [code.name for code in codes]


def _links(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`]({name}.md)" for name in names)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."
