"""One plant of each rule under `roundoff run`: the planted fault is the verdict. `make faults` runs all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run_faults import FOLDER, Expected, Score, ScriptServer, expectations, findings_in

EXPECTED = expectations()
PLANTS = {entry.rule: entry for entry in reversed(EXPECTED) if not entry.healthy and not entry.held_out}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptServer]:
    with ScriptServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("expected", PLANTS.values(), ids=lambda entry: entry.name)
def test_the_verdict_on_a_script_is_the_fault_in_it(expected: Expected, server: ScriptServer, tmp_path: Path) -> None:
    findings = findings_in(expected, server, tmp_path)
    assert findings is not None
    told = [(str(f.severity), f.rule, f.step, f.site, f.op, f.parameter, f.title, f.why) for f in findings]
    assert expected.judge(findings) in (Score.RIGHT, Score.SILENT), (expected, told)


def test_every_script_has_an_expectation_and_every_expectation_its_script() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith(("test_", "run_"))}
    assert scripts == {entry.name for entry in EXPECTED}
