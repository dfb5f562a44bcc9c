"""Every script with a fault and every healthy one under `roundoff run`: the fault is the verdict, or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.run_faults import diagnose_script
from tests.faults.zoo.catalogue import FOLDER, Expected, expectations, healthy_trainings
from tests.watch.script_server import ScriptServer

EXPECTED = expectations()


def as_parameter(expected: Expected) -> object:
    marks = [pytest.mark.xfail(reason=expected.fails, strict=True)] if expected.fails else []
    return pytest.param(expected, id=expected.title, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("expected", [as_parameter(entry) for entry in [*EXPECTED, *healthy_trainings()]])
def test_the_verdict_on_a_script_is_the_fault_in_it(expected: Expected, server: ScriptServer, tmp_path: Path) -> None:
    diagnosed = diagnose_script(expected, server, tmp_path)
    assert diagnosed.is_right, str(diagnosed)


def test_every_script_has_an_expectation_and_every_expectation_its_script() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith(("test_", "run_"))}
    assert scripts == {entry.name for entry in EXPECTED}
