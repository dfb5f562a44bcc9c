"""Evidence is data: a program finds out what each name in it means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import roundoff.diagnose
from roundoff.diagnose.evidence_keys import EVIDENCE_KEYS

ROOM = Path(roundoff.diagnose.__file__).parent


def names_in_evidence() -> Iterator[str]:
    """Yield the names of every dict that is written where evidence is."""
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            given = (
                [each.value for each in node.keywords if each.arg == "evidence"] if isinstance(node, ast.Call) else []
            )
            for value in given:
                for each in ast.walk(value):
                    if isinstance(each, ast.Dict):
                        yield from (key.value for key in each.keys if isinstance(key, ast.Constant))


def test_every_name_in_the_evidence_of_a_rule_is_explained():
    assert sorted({*names_in_evidence()} - EVIDENCE_KEYS.keys()) == []


def test_no_explanation_is_left_over():
    code = "\n".join(path.read_text() for path in ROOM.rglob("*.py") if path.name != "evidence_keys.py")
    assert [name for name in EVIDENCE_KEYS if f'"{name}"' not in code] == []
