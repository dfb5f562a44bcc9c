from pathlib import Path

import pytest

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.against import reference_rule
from roundoff.diagnose.diagnosis import RULES, view_run
from roundoff.runs import Finding, Run, Severity
from tests.report.sample_runs import record_run, write_metrics_run


@pytest.fixture
def broken(tmp_path: Path) -> Run:
    return write_metrics_run(tmp_path / "broken", [2.0, 1.5, float("nan")])


def test_what_a_diagnosis_wrote_is_taken_as_it_is(broken: Run):
    finding = Finding(rule="overflow", severity=Severity.ERROR, confidence=1.0, title="t", why="w", fix="f")
    broken.write_findings([finding])
    assert list(view_run(broken).findings) == [finding]


def test_a_run_that_was_not_diagnosed_is_diagnosed_and_nothing_is_written(broken: Run):
    assert [finding.rule for finding in view_run(broken).findings] == ["loss-nonfinite"]
    assert broken.findings() is None


def test_against_a_reference_it_says_what_the_console_says(tmp_path: Path):
    reference = record_run(tmp_path / "reference", is_broken=False)
    candidate = record_run(tmp_path / "candidate", is_broken=False, eps=0.1)
    view = view_run(candidate, against=reference)
    assert list(view.findings) == list(diagnose_run(candidate, rules=(*RULES, reference_rule(reference))).findings)
    assert view.divergence is not None
    assert (view.divergence.rule, view.divergence.site) == ("first-divergence", "stem.0")
    assert view.findings[0].rule == "first-divergence"


def test_the_name_is_the_run_s_own_or_that_of_its_folder(tmp_path: Path):
    assert view_run(write_metrics_run(tmp_path / "folder", [1.0])).name == "folder"
    assert view_run(write_metrics_run(tmp_path / "other", [1.0], name="mine")).name == "mine"
