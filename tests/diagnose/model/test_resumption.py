"""A resumption that is incomplete is reported where the run that saved is in the same folder."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.model.resumption import incomplete_resumptions
from roundoff.runs import Severity
from tests.compare.resume.written_states import MOMENTS, lines, resumed_run, saving_run, weights
from tests.diagnose.findings import only


def test_what_was_lost_is_a_warning_that_names_the_run(tmp_path: Path):
    saving_run(tmp_path / "start")
    run = resumed_run(tmp_path / "again", groups=(weights("a", "b", "new"), MOMENTS))
    finding = only(incomplete_resumptions, run)
    assert (finding.rule, finding.severity, finding.step) == ("resume-incomplete", Severity.WARNING, 0)
    assert finding.title == ("resumed from start: only some weights were loaded: layer2.weight is not as in the run")


def test_what_many_do_without_is_a_note(tmp_path: Path):
    saving_run(tmp_path / "start")
    run = resumed_run(tmp_path / "again", lines(10, first=9))
    assert only(incomplete_resumptions, run).severity is Severity.NOTE


def test_a_complete_resumption_and_a_new_training_from_the_weights_are_fine(tmp_path: Path):
    saving_run(tmp_path / "start")
    assert incomplete_resumptions(resumed_run(tmp_path / "complete")) == []
    tuned = resumed_run(tmp_path / "tuned", lines(10, lr=lambda step: 1e-4), groups=(weights("a", "b", "new"),))
    assert incomplete_resumptions(tuned) == []
    assert incomplete_resumptions.missing(tuned) == "no checkpoint with the state of an optimizer was loaded"


def test_a_checkpoint_from_elsewhere_is_not_compared(tmp_path: Path):
    run = resumed_run(tmp_path / "alone" / "again")
    assert incomplete_resumptions(run) == []
    assert incomplete_resumptions.missing(run) == "no run in the same folder saved the checkpoint"
    later = saving_run(tmp_path / "later" / "start")
    run = resumed_run(tmp_path / "later" / "again", groups=(weights("x", "y", "z"), MOMENTS))
    assert later.path.exists()
    assert incomplete_resumptions(run) == []
