"""A rank that ended with fewer steps is named, where another fails because it is missing."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.ranks.division_of_work import mismatched_collectives
from roundoff.runs import Anomaly, ExceptionDetail, Metrics, Run
from tests.run_folders import write_run

CLOSED = "Connection closed by peer [127.0.0.1]:41154."


def write(folder: Path, num_steps: tuple[int, int], messages: tuple[str | None, str | None]) -> Run:
    for rank in range(2):
        metrics = [Metrics(step=step, loss=1.0) for step in range(num_steps[rank])]
        raised = Anomaly(step=num_steps[rank] - 1, kind="exception", detail=ExceptionDetail(message=messages[rank]))
        run = write_run(folder, metrics, [raised] if messages[rank] else [], rank=rank, ranks=2)
    return run


def test_the_rank_with_fewer_steps_and_the_step_that_has_no_partner_are_named(tmp_path: Path) -> None:
    (finding,) = mismatched_collectives(write(tmp_path / "run", (12, 11), (CLOSED, None)))
    assert (finding.rule, finding.rank, finding.step) == ("collective-mismatch", 1, 11)


def test_a_rank_that_failed_by_itself_is_no_mismatch(tmp_path: Path) -> None:
    assert mismatched_collectives(write(tmp_path / "run", (12, 11), (CLOSED, "index out of bounds"))) == []


def test_uneven_ranks_that_no_one_waits_for_are_fine(tmp_path: Path) -> None:
    assert mismatched_collectives(write(tmp_path / "run", (12, 11), (None, None))) == []
