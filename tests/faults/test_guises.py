"""A guise changes how a training is written and nothing else; where that is not so, the training is not counted."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from roundoff.runs import Finding, Severity
from tests.faults.guises.guise import GUISES, as_many_losses, losses_among, same_losses, similar_losses
from tests.faults.guises.training_loop import plain_training
from tests.faults.run_guises import Outcome, put_on, table_of_guises, try_one
from tests.faults.zoo.catalogue import Expected, expectations
from tests.watch.script_server import ScriptServer

PLAIN = """\"\"\"A training.\"\"\"
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4)
    loss = nn.functional.cross_entropy(model(x), x[:, :2].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""
IN_A_FUNCTION = "import torch\ndef train():\n    for x in range(3):\n        torch.ones(2).sum().backward()\ntrain()\n"
SIGNS = {
    "training-class": ("self.model = nn.Linear(4, 2)", "self.optimizer.step()", "Training().fit()"),
    "batch-size": ("torch.randn(", "model = nn.Linear(4, 2)"),
    "trained-companion": ("companion_optimizer.step()", "loss.backward()"),
    "autocast": ("with torch.autocast('cpu', torch.bfloat16):\n        x = torch.randn(8, 4)", "\n    loss.backward()"),
    "accelerate": ("model, optimizer = accelerator.prepare(model, optimizer)", "accelerator.backward(loss)"),
    "lightning": ("self.manual_backward(loss)", "global loss, step, x", ".fit(Task(), range(3))"),
    "hf-trainer": ("return loss", "batches = range(3)", "optimizers=(optimizer,"),
    "two-ranks": ("DistributedDataParallel(model", "init_process_group('gloo')", "1000 + torch.distributed.get_rank()"),
}


def rewritten(guise: str, source: str) -> str | None:
    tree = ast.parse(source)
    made = GUISES[guise].rewriting(tree, random.Random(0))
    if made is None:
        assert ast.unparse(tree) == ast.unparse(ast.parse(source))  # it is left as it was
        return None
    return ast.unparse(ast.fix_missing_locations(made))


@pytest.mark.parametrize("guise", SIGNS)
def test_a_plain_training_is_rewritten(guise: str) -> None:
    after = rewritten(guise, PLAIN)
    assert after is not None
    assert [sign for sign in SIGNS[guise] if sign not in after] == []
    assert ".zero_grad()" in after or guise == "hf-trainer"


@pytest.mark.parametrize("guise", SIGNS)
def test_a_script_of_another_form_is_left_alone(guise: str) -> None:
    assert rewritten(guise, IN_A_FUNCTION) is None


@pytest.mark.parametrize(
    ("guise", "old", "new"),
    [
        ("lightning", "    print(step", "    if step: break\n    print(step"),
        ("hf-trainer", "    optimizer.zero_grad()\n", ""),
        ("hf-trainer", "    optimizer.step()\n", "    optimizer.step()\n    optimizer.step()\n"),
        ("hf-trainer", "    optimizer.step()\n", "    nn.utils.clip_grad_norm_([x], 1)\n    optimizer.step()\n"),
        ("two-ranks", "x = torch.randn(8, 4)", "x = torch.ones(8, 4)"),
        ("two-ranks", "model(x)", "model.forward(x)"),
        ("training-class", "for step", "scale = lambda model: 1\nfor step"),
        ("accelerate", "for step", "other = torch.optim.SGD(model.parameters())\nfor step"),
    ],
)
def test_a_training_that_the_guise_would_change_is_left_alone(guise: str, old: str, new: str) -> None:
    assert old in PLAIN
    assert rewritten(guise, PLAIN) is not None
    assert rewritten(guise, PLAIN.replace(old, new)) is None


def test_the_batch_is_larger_and_nothing_else_changes() -> None:
    after = rewritten("batch-size", PLAIN)
    assert after is not None
    sizes = [size for size in (12, 16) if f"torch.randn({size}, 4)" in after]
    assert after.replace(f"torch.randn({sizes[0]}, 4)", "torch.randn(8, 4)") == ast.unparse(ast.parse(PLAIN))


def test_a_loss_that_has_no_name_gets_one_under_autocast() -> None:
    source = PLAIN.replace("loss = nn", "nn").replace(".argmax(1))\n", ".argmax(1)).backward()\n", 1)
    source = source.replace("    loss.backward()\n", "").replace(", loss.item()", "")
    after = rewritten("autocast", source)
    assert after is not None
    assert "computed_loss = nn.functional.cross_entropy" in after
    assert "    computed_loss.backward()" in after


def test_the_parts_of_a_plain_training_are_found() -> None:
    training = plain_training(ast.parse(PLAIN))
    assert training is not None
    assert (training.model, training.optimizer, training.backward) == ("model", "optimizer", 3)
    assert ast.unparse(training.loss) == "loss"


def test_faults_that_depend_on_what_a_guise_changes_do_not_get_it(tmp_path: Path) -> None:
    by_rule = {entry.rule: entry for entry in expectations()}
    for guise, rule, family in [
        ("autocast", "cancellation", "Numbers and formats"),
        ("batch-size", "tiny-norm-batch", "The model"),
        ("two-ranks", "rank-data-duplicate", "Several ranks"),
        ("lightning", "killed", "The process"),
    ]:
        assert GUISES[guise].put_on(by_rule[rule], family, tmp_path, seed=0) is None


def test_a_source_line_and_the_names_inside_a_guise_are_followed(tmp_path: Path) -> None:
    (tmp_path / "plant.py").write_text(PLAIN)
    entry = Expected(name="plant", rule="overflow", site="<loop>", source="faults/plant.py:10", folder=tmp_path, step=2)
    put = GUISES["hf-trainer"].put_on(entry, "The loss", tmp_path / "made", seed=0)
    assert put is not None
    assert put.inside == "net"
    assert put.step == 2
    assert put.source is not None
    path, _, line = put.source.rpartition(":")
    assert path == "made/plant-hf-trainer.py"
    assert "loss = nn.functional" in put.script.read_text().splitlines()[int(line) - 1]
    other = GUISES["batch-size"].put_on(entry, "The loss", tmp_path / "made", seed=0)
    assert other is not None
    assert other.step is None


@pytest.mark.parametrize(
    ("site", "found", "is_met"),
    [
        ("gate", "net.gate", True),
        ("gate", "net.other", False),
        ("<model>", "net", True),
        ("<loop>", "<model>", True),
        ("gate", "<model>", False),
    ],
)
def test_the_name_of_a_module_has_that_of_the_guise_before_it(site: str, found: str, is_met: bool) -> None:
    entry = Expected(name="plant", rule="overflow", site=site, inside="net")
    finding = Finding(rule="overflow", severity=Severity.ERROR, confidence=1.0, title="", why="", fix="", site=found)
    assert entry.is_met_by(finding) == is_met


def test_the_losses_decide_whether_a_guise_kept_the_training() -> None:
    nan = float("nan")
    assert same_losses([1.0, nan], [1.0, nan])
    assert not same_losses([1.0, 2.0], [1.0, 2.0 + 1e-12])
    assert losses_among([1.0, nan], [1.0, 5.0, nan, 4.0])
    assert not losses_among([1.0, 2.0], [2.0, 1.0])
    assert as_many_losses([1.0, 2.0], [3.0, 4.0])
    assert not as_many_losses([1.0, nan], [1.0, 2.0])
    assert similar_losses([1.0, 9.0], [1.01, 4.0])
    assert not similar_losses([1.0, 2.0], [1.5, 2.0])


def test_the_table_counts_only_what_still_trains_the_same() -> None:
    outcomes = [
        Outcome(name="a", guise="class", healthy=False, sound=True, cause=True, place=False),
        Outcome(name="b", guise="class", healthy=False, sound=False),
        Outcome(name="c", guise="class", healthy=True, sound=True, blamed=True),
    ]
    lines = table_of_guises(outcomes, fits={"class": 7}, num_plants=9).splitlines()
    assert lines[2] == "| class | 7 | 1 of 2 | 1 of 1 | 0 of 1 | 1 of 1 |"


@pytest.mark.slow
@pytest.mark.parametrize("guise", GUISES)
def test_a_fault_is_the_same_finding_in_every_guise(guise: str, server: ScriptServer, tmp_path: Path) -> None:
    entries = [entry for entry in expectations() if entry.name == "dead_units_bias"]
    ((entry, put),) = put_on(GUISES[guise], entries, tmp_path / "made", seed=0)
    outcome = try_one(GUISES[guise], entry, put, server, tmp_path / "runs")
    assert outcome == Outcome(name="dead_units_bias", guise=guise, healthy=False, sound=True, cause=True, place=True)
