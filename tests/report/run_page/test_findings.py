from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.run_page.findings import MAX_FINDINGS, verdict_section
from roundoff.runs import Answer, CachedRun, Edit, Failure, Finding, RuleAnswer, Run, RunInfo, RunWriter, Severity
from tests.report.sample_runs import HOSTILE, write_metrics_run

OVERFLOW = Finding(
    rule="overflow",
    severity=Severity.ERROR,
    confidence=0.99,
    title="fp16 matmul overflowed",
    why="its inputs reach 1.7e3\nThe infinity reaches the loss.",
    fix="keep this layer wide",
    step=12,
    rank=1,
    site="blocks.3.attn",
    op="aten.bmm#0",
    source="model.py:41",
    evidence=({"tensor": "input0", "absmax": 1712.0},),
    related=(Finding(rule="loss-nonfinite", severity=Severity.ERROR, confidence=1, title="so", why="", fix=""),),
)
NOTE = Finding(rule="a-note", severity=Severity.NOTE, confidence=1, title="something small", why="", fix="")


@pytest.fixture
def run(tmp_path: Path) -> CachedRun:
    return CachedRun.of(write_metrics_run(tmp_path / "run", [1.0]))


def test_the_verdict_is_unfolded_with_its_fix_and_evidence(run: CachedRun):
    body = verdict_section(RunView(run=run, findings=[OVERFLOW, NOTE])).body
    assert body.count("<details") == 3
    assert body.count(" open") == 1
    for words in ("fp16 matmul overflowed", "overflow   blocks.3.attn / aten.bmm#0   step 12, rank 1", "model.py:41"):
        assert words in body
    assert '<span class="fix">keep this layer wide</span>' in body
    assert "<p>The infinity reaches the loss.</p>" in body
    assert "tensor: input0, absmax: 1712" in body
    assert "loss-nonfinite: so" in body


def test_a_finding_with_a_step_leads_to_it(run: CachedRun):
    body = verdict_section(RunView(run=run, findings=[OVERFLOW])).body
    assert 'data-step="12" data-rank="1"' in body


def test_of_a_run_in_progress_it_is_said_so_far(tmp_path: Path):
    with RunWriter.create(tmp_path / "going on", RunInfo()):
        run = CachedRun.of(Run.open(tmp_path / "going on"))
        assert "Nothing found so far." in verdict_section(RunView(run=run, findings=[])).body


def test_a_healthy_run_says_so_also_next_to_notes(run: CachedRun):
    assert "Nothing found." in verdict_section(RunView(run=run, findings=[])).body
    noted = verdict_section(RunView(run=run, findings=[NOTE])).body
    assert "Nothing found." in noted
    assert "something small" in noted
    assert "Nothing found." not in verdict_section(RunView(run=run, findings=[OVERFLOW])).body


def test_many_findings_are_counted(run: CachedRun):
    made = verdict_section(RunView(run=run, findings=[OVERFLOW] * (MAX_FINDINGS + 5)))
    assert list(made.thinned) == ["5 more findings are in findings.json."]


def test_hostile_words_stay_text(run: CachedRun):
    hostile = Finding(
        rule=HOSTILE, severity=Severity.ERROR, confidence=1, title=HOSTILE, why=HOSTILE, fix=HOSTILE, site=HOSTILE,
        source=HOSTILE, evidence=({HOSTILE: HOSTILE},),
    )  # fmt: skip
    body = verdict_section(RunView(run=run, findings=[hostile])).body
    assert body.count("alert(1)") == 9
    assert "<script" not in body


def test_the_answers_of_rules_are_listed_apart(run: CachedRun):
    answers = [
        RuleAnswer(checks="jumps of the loss", codes=("loss-spike",), answer=Answer.FINE),
        RuleAnswer(
            checks="ranks", codes=("x",), answer=Answer.NOTHING_TO_LOOK_AT, reason="the training ran on one rank"
        ),
    ]
    body = verdict_section(RunView(run=run, findings=[], answers=answers)).body
    assert "<summary>fine: 1 check</summary><ul><li>jumps of the loss</li></ul>" in body
    assert "<summary>nothing to look at: 1 check</summary><ul><li>ranks: the training ran on one rank</li></ul>" in body


def test_rules_that_failed_are_one_line(run: CachedRun):
    failed = replace(NOTE, rule="rule-failed", title="could not check learning rates of 0")
    failure = Failure(check="rule", name="lr-zero", error="IndexError: list index out of range")
    body = verdict_section(RunView(run=run, findings=[failed], failures=[failure])).body
    assert "1 check failed inside roundoff; please report: rule lr-zero (IndexError: list index out of range)" in body
    assert "could not check" not in body


def test_the_edits_and_the_id_are_next_to_the_fix(run: CachedRun):
    edit = Edit(file="model.py", line=41, action="replace", old="q @ k", new="q.float() @ k.float()")
    body = verdict_section(RunView(run=run, findings=[replace(OVERFLOW, edits=(edit,))])).body
    assert "model.py:41: replace &#x27;q @ k&#x27; by &#x27;q.float() @ k.float()&#x27;" in body
    assert f'<span class="id">{OVERFLOW.id}</span>' in body
