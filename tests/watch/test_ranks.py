"""Several ranks under watch: whatever fails on one of them, the training of all ends as it does without us."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.watch.script_server import ScriptServer

SCRIPT = Path(__file__).parent / "ranks" / "one_rank_stops.py"


@pytest.mark.parametrize("moment", ["replay-folder", "state", "first-events", "users-code", "watch", "flush"])
def test_a_rank_that_stops_replaying_at_any_moment_harms_no_other(
    moment: str, server: ScriptServer, tmp_path: Path
) -> None:
    bare = server.run([SCRIPT, "weights.pt", moment], folder=tmp_path / "bare", ranks=2)
    watched = server.run(
        [SCRIPT, "weights.pt", moment], folder=tmp_path / "watched", ranks=2, watched=["--name", "run"]
    )
    assert bare.codes == [0, 0], bare.stderr
    assert watched.codes == [0, 0], watched.stderr
    for rank in range(2):
        name = f"weights.pt.{rank}"
        assert (tmp_path / "watched" / name).read_bytes() == (tmp_path / "bare" / name).read_bytes()
    assert watched.seconds < 60
    last = next(line for line in watched.stderr.splitlines() if line.startswith("Not everything was watched: "))
    assert "rank 1" in last


def test_the_diagnosis_waits_for_a_rank_that_is_late(server: ScriptServer, tmp_path: Path) -> None:
    script = SCRIPT.with_name("one_rank_is_late.py")
    ended = server.run([script], folder=tmp_path, ranks=2, watched=["--name", "run"])
    assert ended.codes == [1, 0], ended.stderr
    answers = Run.open(tmp_path / "runs" / "run").rule_answers()
    reason = next(answer.reason for answer in answers if "unused-parameter" in answer.codes)
    assert reason == "no model is wrapped in DistributedDataParallel"


def test_late_steps_of_several_ranks_are_quiet_until_one_of_them_gets_a_bad_loss(
    server: ScriptServer, tmp_path: Path
) -> None:
    script = SCRIPT.with_name("late_nan.py")
    ended = server.run([script], folder=tmp_path, ranks=2, watched=["--name", "run"])
    assert ended.codes == [0, 0], ended.stderr
    assert "step 330 could not be replayed: it was not taped" in ended.stderr
    run = Run.open(tmp_path / "runs" / "run")
    assert run.replayed_steps == [420]
    assert not run.gaps()
