"""Findings as text, written out."""

from __future__ import annotations

from dataclasses import replace

from roundoff.report import answers_text, findings_text, watched_text
from roundoff.report.findings_text import failure_lines, finding_text
from roundoff.runs import Answer, Edit, Failure, Finding, RuleAnswer, Severity

OVERFLOW = Finding(
    rule="overflow",
    severity=Severity.ERROR,
    confidence=0.99,
    step=1203,
    phase="forward",
    site="blocks.3.attn",
    op="aten.bmm#0",
    source="model.py:41",
    title="fp16 matmul overflowed",
    why="its inputs reach 1.7e3, the product 2.9e6 exceeds 65504; in fp64 it is finite\n"
    "The infinity reaches the loss and 27 of 29 gradients. Loss and weights were fine up to step 1202.",
    fix='keep this layer wide:  apply_recipe(model, optimizer, "O2", overrides={"blocks.3.attn": "fp32"})\n'
    "or scale q before the matmul (model.py:41)",
)
WATCHED = watched_text(num_steps=1204, seconds=372.4, parts={"first steps": 3.0, "the rest": 2.0})


def test_says_plainly_when_nothing_was_found() -> None:
    assert findings_text([]) == "Nothing found."


def test_nothing_found_is_one_line_with_what_the_watch_cost() -> None:
    reported = "watched 1204 steps in 6 min 12 s; roundoff added 5.0 s (1.4 %): first steps 3.0 s, the rest 2.0 s"
    assert findings_text([], watched=WATCHED) == f"Nothing found; {reported}"


def test_lays_a_finding_out_with_its_place_first_and_its_source_at_the_right_edge() -> None:
    finding = Finding(
        rule="overflow",
        severity=Severity.ERROR,
        confidence=0.99,
        step=12,
        phase="forward",
        site="blocks.3.attn",
        op="aten.bmm#0",
        source="model.py:41",
        title="fp16 bmm overflowed",
        why="its inputs reach 1.7e3; the product 2.9e6 is beyond fp16's largest number 65504; in fp64 it is finite",
        fix="scale q by 1/sqrt(d) before the matmul, or keep blocks.3.attn in fp32",
    )
    assert findings_text([finding]) == (
        "overflow   blocks.3.attn / aten.bmm#0   step 12, forward                                 model.py:41\n"
        "  fp16 bmm overflowed: its inputs reach 1.7e3; the product 2.9e6 is beyond fp16's largest number\n"
        "  65504; in fp64 it is finite.\n"
        "  fix    scale q by 1/sqrt(d) before the matmul, or keep blocks.3.attn in fp32."
    )


def test_an_empty_paragraph_is_no_sentence() -> None:
    found = replace(OVERFLOW, why="the gradients are infinite when scaled, but finite unscaled\n")
    assert "." not in [line.strip() for line in findings_text([found]).splitlines()]


def test_the_verdict_screen() -> None:
    text = findings_text(
        [OVERFLOW],
        saved="the batch and the state before the step:  roundoff replay runs/train-3",
        next_commands=["roundoff report runs/train-3", "roundoff plan runs/train-3"],
        watched=WATCHED,
        width=108,
    )
    assert text == (
        "overflow   blocks.3.attn / aten.bmm#0   step 1203, forward"
        "                                       model.py:41\n"
        "  fp16 matmul overflowed: its inputs reach 1.7e3, the product 2.9e6 exceeds 65504; in fp64 it is finite.\n"
        "  The infinity reaches the loss and 27 of 29 gradients. Loss and weights were fine up to step 1202.\n"
        '  fix    keep this layer wide:  apply_recipe(model, optimizer, "O2", overrides={"blocks.3.attn": "fp32"})\n'
        "         or scale q before the matmul (model.py:41)\n"
        "  saved  the batch and the state before the step:  roundoff replay runs/train-3\n"
        "  next   roundoff report runs/train-3     roundoff plan runs/train-3\n"
        "watched 1204 steps in 6 min 12 s; roundoff added 5.0 s (1.4 %): first steps 3.0 s, the rest 2.0 s"
    )


def test_commands_that_do_not_fit_side_by_side_stand_one_below_the_other() -> None:
    commands = ["roundoff report runs/train-3", "roundoff runs show runs/train-3 --step 1203 --site 'blocks.3.attn'"]
    assert findings_text([OVERFLOW], next_commands=commands, width=90).splitlines()[-2:] == [
        "  next   roundoff report runs/train-3",
        "         roundoff runs show runs/train-3 --step 1203 --site 'blocks.3.attn'",
    ]


def test_findings_after_the_first_get_one_line_each_and_the_last_ones_a_count() -> None:
    leak = Finding(
        rule="graph-leak", severity=Severity.WARNING, confidence=0.9, source="train.py:9", step=7, rank=1,
        title="graphs of old steps are kept", why="-", fix="-",
    )  # fmt: skip
    note = replace(leak, rule="frozen", severity=Severity.NOTE, rank=0, title="half the model is frozen")
    lines = findings_text([OVERFLOW, leak, note, *[leak] * 6]).splitlines()
    assert lines[-7] == "graph-leak   step 7, rank 1   graphs of old steps are kept"
    assert lines[-1] == "2 more in findings.json"
    assert findings_text([note]) == "Nothing found.\nnote: frozen   step 7   half the model is frozen"


def test_a_line_that_is_too_long_is_cut_and_keeps_its_columns() -> None:
    long = replace(OVERFLOW, title="one two three four five six seven")
    assert findings_text([OVERFLOW, long], width=80).splitlines()[-1] == (
        "overflow   blocks.3.attn / aten.bmm#0   step 1203, forward   one two three f ..."
    )


def test_what_one_cause_led_to_is_named_below_the_fix() -> None:
    related = replace(OVERFLOW, rule="step-on-nonfinite-gradients", title="the optimizer stepped on bad gradients")
    lines = findings_text([replace(OVERFLOW, related=(related,))]).splitlines()
    assert lines[-1] == "  also   step-on-nonfinite-gradients: the optimizer stepped on bad gradients."


def test_the_screen_of_the_longest_verdict_fits_on_24_lines() -> None:
    text = findings_text([replace(OVERFLOW, related=(OVERFLOW,) * 9), *[OVERFLOW] * 30], saved="x", next_commands=["y"])
    assert len(text.splitlines()) <= 24


def test_the_answers_of_rules_are_listed_apart() -> None:
    answers = [
        RuleAnswer(
            checks="ranks", codes=("x",), answer=Answer.NOTHING_TO_LOOK_AT, reason="the training ran on one rank"
        ),
        RuleAnswer(checks="jumps of the loss", codes=("y",), answer=Answer.FINE),
        RuleAnswer(checks="memory", codes=("z",), answer=Answer.FAILED, reason="division by zero"),
        RuleAnswer(checks="the first loss", codes=("initial-loss",), answer=Answer.FOUND),
    ]
    assert answers_text(answers).splitlines() == [
        "  found               the first loss",
        "  fine                jumps of the loss",
        "  nothing to look at  ranks: the training ran on one rank",
        "  failed              memory: division by zero",
    ]


def test_checks_that_failed_are_one_line_of_bugs_and_one_of_damage() -> None:
    answers = [
        RuleAnswer(checks="rates", codes=("lr-zero", "x"), answer=Answer.FAILED, reason="list index out of range"),
        RuleAnswer(checks="NaN", codes=("overflow",), answer=Answer.FAILED, reason="'metrics-rank0.jsonl' is damaged."),
    ]
    failures = [Failure(check="rule", name="lr-zero", error="IndexError: list index out of range")]
    note = replace(OVERFLOW, rule="rule-failed", severity=Severity.NOTE)
    assert findings_text([note], failed=failure_lines(answers, failures)).splitlines() == [
        "Nothing found, but some checks failed.",
        "1 check failed inside roundoff; please report: rule lr-zero (IndexError: list index out of range)",
        "1 check could not read the run: 'metrics-rank0.jsonl' is damaged.",
    ]


def test_long_trainings_are_reported_in_hours() -> None:
    assert watched_text(num_steps=9, seconds=7384.0) == "watched 9 steps in 2 h 3 min"


def test_edits_that_say_what_to_write_are_shown_with_the_fix() -> None:
    what = dict(rule="missing-zero-grad", severity=Severity.ERROR, confidence=1, title="never cleared", why="seen")
    edit = Edit(file="train.py", line=7, action="insert", new="    optimizer.zero_grad()")
    text = finding_text(Finding(**what, fix="call zero_grad()", edits=(edit,)))
    assert text.splitlines()[-2:] == [
        "  fix    call zero_grad()",
        "  edit   train.py:7: insert before it 'optimizer.zero_grad()'",
    ]
    pointing = Edit(file="train.py", line=7, action="change", old="loss.backward()")
    assert "edit" not in finding_text(Finding(**what, fix="call zero_grad()", edits=(pointing,)))
