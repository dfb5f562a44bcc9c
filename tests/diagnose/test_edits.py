"""Edits: the fix of a finding as changes of the script that ran."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from roundoff.diagnose.edits import with_edits
from roundoff.runs import Edit, Finding, Run, Severity
from tests.run_folders import write_run

LOOP = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=30)
scaler = torch.amp.GradScaler("cpu")
for x in batches:
    loss = criterion(model(x), reduction="sum")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


def finding(rule: str, **place: object) -> Finding:
    return Finding(rule=rule, severity=Severity.ERROR, confidence=1.0, title="", why="", fix="", **place)


def run_of(folder: Path, script: str) -> Run:
    (folder / "train.py").write_text(script)
    os.utime(folder / "train.py", (0, 0))
    return write_run(folder / "run", command=(str(folder / "train.py"),))


def edits_of(folder: Path, rule: str, *, script: str = LOOP, **place: object) -> list[Edit]:
    (found,) = with_edits(run_of(folder, script), [finding(rule, **place)], is_at_hand=True)
    return list(found.edits)


@pytest.mark.parametrize(
    ("rule", "line", "action", "old", "new"),
    [
        ("missing-zero-grad", 7, "insert", None, "    optimizer.zero_grad()"),
        ("lr-too-high", 3, "replace", "30", "0.3"),
        ("loss-sum-reduction", 6, "replace", '"sum"', '"mean"'),
        ("double-softmax", 2, "replace", ", torch.nn.Softmax(dim=1)", ""),
        ("clip-before-unscale", 8, "insert", None, "    scaler.unscale_(optimizer)"),
        ("not-in-optimizer", 3, "change", "optimizer = torch.optim.SGD(model.parameters(), lr=30)", None),
    ],
)
def test_says_which_line_to_change_and_how(
    tmp_path: Path, rule: str, line: int, action: str, old: str | None, new: str | None
):
    expected = Edit(file="train.py", line=line, action=action, old=old, new=new)
    assert edits_of(tmp_path, rule) == [expected]


def test_the_number_of_batches_comes_from_the_evidence(tmp_path: Path):
    (edit,) = edits_of(tmp_path, "accumulation-not-averaged", evidence=({"num_backwards": 8, "factor": 1.0},))
    assert (edit.old, edit.new) == ("loss.backward()", "(loss / 8).backward()")


def test_moving_a_line_is_removing_and_inserting_it(tmp_path: Path):
    script = LOOP.replace("    loss.backward()\n", "").replace(
        "optimizer.step()", "loss.backward()\n    optimizer.step()"
    )
    removed, inserted = edits_of(tmp_path, "clip-before-backward", script=script)
    assert (removed.action, removed.line, inserted.action, inserted.line) == ("remove", 7, "insert", 9)


def test_other_findings_point_to_their_source_line_or_to_where_their_site_is_built(tmp_path: Path):
    script = (
        "class Net:\n    def __init__(self):\n        self.attn = make()\n    def forward(self): return self.attn()\n"
    )
    by_source = edits_of(tmp_path, "overflow", script=script, source="train.py:4")
    (tmp_path / "other").mkdir()
    by_site = edits_of(tmp_path / "other", "dead-units", script=script, site="blocks.0.attn")
    assert [(edit.line, edit.action) for edit in (*by_source, *by_site)] == [(4, "change"), (3, "change")]


@pytest.mark.parametrize("script", ["this is no code (", "", "loss.backward()\nother.backward()\n"])
def test_code_that_does_not_say_where_leaves_the_edits_empty(tmp_path: Path, script: str):
    assert edits_of(tmp_path, "missing-zero-grad", script=script) == []


def test_files_are_read_only_where_the_script_just_ran_and_earlier_edits_are_kept(tmp_path: Path):
    run = run_of(tmp_path, LOOP)
    assert with_edits(run, [finding("missing-zero-grad")], is_at_hand=False)[0].edits == ()
    found = with_edits(run, [finding("missing-zero-grad", step=3)], is_at_hand=True)
    run.write_findings(found)
    (kept,) = with_edits(run, [finding("missing-zero-grad", step=9)], is_at_hand=False)
    assert kept.edits == found[0].edits != ()
    assert Finding.from_object(json.loads(json.dumps(kept.to_object()))) == kept


MODEL = """\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 1))
model.out.weight.data.copy_(model.embed.weight.data)
for parameter in model.parameters():
    nn.init.zeros_(parameter)
optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
model.head = nn.Linear(8, 1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 500))
for epoch in range(3):
    for x, y, mask in batches:
        mean = x.mean(dim=-1)
        variance = (x**2).mean(dim=-1) - mean**2
        loss = nn.functional.mse_loss(model(x, key_padding_mask=mask), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
"""


@pytest.mark.parametrize(
    ("rule", "place", "expected"),
    [
        (
            "loss-broadcast",
            {"source": "train.py:14", "evidence": ({"input": [32, 1], "target": [32], "loss": [32, 32]},)},
            [(14, "replace", " y)", " y.unsqueeze(-1))")],
        ),
        ("mask-inverted", {}, [(14, "replace", "=mask)", "=mask.logical_not())")]),
        ("tie-broken", {"parameter": "out.weight"}, [(4, "replace", "", "model.out.weight = model.embed.weight")]),
        ("zero-init", {}, [(6, "remove", "", None), (5, "remove", "", None)]),
        ("not-in-optimizer", {}, [(7, "replace", "model.body.parameters()", "model.parameters()")]),
        ("lr-zero", {}, [(9, "replace", "step // 500", "step / 500")]),
        ("scheduler-rate", {}, [(17, "remove", "", None), (18, "insert", None, "    scheduler.step()")]),
        (
            "cancellation",
            {"source": "train.py:13"},
            [(13, "replace", "(x**2).mean(dim=-1) - mean**2", "x.var(dim=-1, correction=0)")],
        ),
        (
            "affine-network",
            {"evidence": ({"sites": ["0", "2", "3"]},)},
            [
                (
                    3,
                    "replace",
                    "",
                    "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.ReLU(), "
                    "nn.Linear(8, 1))",
                )
            ],
        ),
    ],
)
def test_says_what_to_write_where_the_model_is_built(
    tmp_path: Path, rule: str, place: dict[str, object], expected: list[tuple[int, str, str | None, str | None]]
):
    made = edits_of(tmp_path, rule, script=MODEL, **place)
    for edit, (line, action, old, new) in zip(made, expected, strict=True):
        assert (edit.line, edit.action, edit.new) == (line, action, new)
        assert not old or edit.old == old


def test_gives_the_target_the_dimension_of_the_prediction(tmp_path: Path):
    evidence = ({"input": [32, 1], "target": [32], "loss": [32, 32]},)
    script = MODEL.replace("mse_loss(model(x, key_padding_mask=mask), y)", "mse_loss(model(x), 2 * labels[rows])")
    (edit,) = edits_of(tmp_path, "loss-broadcast", script=script, source="train.py:14", evidence=evidence)
    assert (edit.old, edit.new) == ("2 * labels[rows]", "(2 * labels[rows]).unsqueeze(-1)")
    (tmp_path / "other").mkdir()
    other = ({"input": [32], "target": [32, 1], "loss": [32, 32]},)
    (edit,) = edits_of(tmp_path / "other", "loss-broadcast", script=script, source="train.py:14", evidence=other)
    assert edit.action == "change"


def test_builds_the_optimizer_after_the_last_change_of_its_model(tmp_path: Path):
    script = MODEL.replace("model.body.parameters()", "model.parameters()")
    removed, inserted = edits_of(tmp_path, "stale-optimizer-parameters", script=script)
    assert (removed.action, removed.line, inserted.action, inserted.line) == ("remove", 7, "insert", 9)
    assert inserted.new == "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    (tmp_path / "used").mkdir()
    used = script.replace("model.head =", "print(optimizer)\nmodel.head =")
    (edit,) = edits_of(tmp_path / "used", "stale-optimizer-parameters", script=used)
    assert (edit.action, edit.line) == ("change", 7)


def test_removes_no_line_that_has_more_on_it(tmp_path: Path):
    script = MODEL.replace("for parameter in model.parameters():\n    ", "print(1); ").replace("(parameter)", "(w)")
    (edit,) = edits_of(tmp_path, "zero-init", script=script)
    assert (edit.action, edit.line) == ("change", 5)


def test_loads_the_state_of_an_optimizer_that_a_function_returned(tmp_path: Path):
    script = """\
model, optimizer = built()
model.load_state_dict(saved["model"])
for x in batches:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""
    (edit,) = edits_of(tmp_path, "optimizer-state-lost", script=script, evidence=({"keys": ["optim"]},))
    assert (edit.line, edit.new) == (3, 'optimizer.load_state_dict(saved["optim"])')
