from pathlib import Path

from roundoff.diagnose import diagnose_run
from roundoff.report.findings_text import next_commands
from tests.report.sample_runs import record_run, write_metrics_run


def test_a_page_is_proposed_and_the_events_of_the_verdict(tmp_path: Path):
    run = record_run(tmp_path / "run")
    assert next_commands(run, diagnose_run(run)) == [
        f"roundoff report {run.path}",
        f"roundoff runs show {run.path} --step 1 --site 'body'",
        f"roundoff diagnose {run.path} --finding {diagnose_run(run).findings[0].id}",
    ]


def test_without_events_the_page_is_proposed_and_the_explanation(tmp_path: Path):
    run = write_metrics_run(tmp_path / "run", [1.0, float("nan")])
    diagnosis = diagnose_run(run)
    assert next_commands(run, diagnosis) == [
        f"roundoff report {run.path}",
        f"roundoff diagnose {run.path} --finding {diagnosis.findings[0].id}",
    ]


def test_a_healthy_run_calls_for_nothing(tmp_path: Path):
    run = record_run(tmp_path / "run", is_broken=False)
    assert next_commands(run, diagnose_run(run)) == []
