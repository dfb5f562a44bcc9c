"""A script under watch is the same script, on every kind of training; and its first steps can be replayed bit for bit.

`kinds/` holds the scripts: each trains for 50 steps and saves its weights where its argument says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.watch.script_server import ScriptServer

KINDS = sorted((Path(__file__).parent / "kinds").glob("*.py"))


@pytest.mark.parametrize("script", KINDS, ids=[script.stem for script in KINDS])
def test_a_watched_script_is_the_same_script(script: Path, server: ScriptServer, tmp_path: Path) -> None:
    ranks = 2 if script.stem.startswith("two_ranks") else 1
    bare = server.run([script, "weights.pt"], folder=tmp_path / "bare", ranks=ranks)
    watched = server.run([script, "weights.pt"], folder=tmp_path / "watched", ranks=ranks, watched=["--name", "run"])

    assert bare.codes == [0] * ranks, bare.stderr
    assert watched.codes == bare.codes, watched.stderr
    assert watched.stdout == bare.stdout
    weights = sorted((tmp_path / "bare").glob("weights.pt*"))
    assert len(weights) == ranks
    for path in weights:
        assert (tmp_path / "watched" / path.name).read_bytes() == path.read_bytes()

    run = Run.open(tmp_path / "watched" / "runs" / "run")
    assert watched.stderr.startswith(bare.stderr + "Nothing found; watched"), watched.stderr
    assert run.info.notes == ()
    assert run.replayed_steps == []
    assert run.steps == [0, 1]
