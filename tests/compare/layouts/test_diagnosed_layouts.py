"""Correct parallel trainings are healthy for `roundoff run` too; further ones are in tests/faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.watch.script_server import ScriptServer

SCRIPTS = Path(__file__).parent / "scripts"
NUM_STEPS = 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "variant", "ranks"),
    [
        ("pipeline_parallel", "", 2),
        ("context_parallel", "", 2),
        ("sequence_parallel", "", 2),
        ("tensor_parallel", "dropout", 2),
        ("fully_sharded", "", 2),
        ("two_dimensional", "", 4),
    ],
)
def test_nothing_is_found(server: ScriptServer, tmp_path: Path, script: str, variant: str, ranks: int):
    words = [SCRIPTS / f"{script}.py", variant, str(NUM_STEPS)]
    ended = server.run(words, watched=["--name", "run"], folder=tmp_path, ranks=ranks)
    assert ended.code == 0, ended.stderr
    assert Run.open(tmp_path / "runs" / "run").findings() == []
