"""What the probe of eval mode tells: random evaluation, and models that are others in eval mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.loss.evaluation import evaluation_gaps, random_evaluations
from roundoff.runs import EvalModeProbe, ModuleFacts, RandomOp, Run, Severity
from tests.diagnose.findings import only
from tests.run_folders import write_run

NORM = ModuleFacts(
    site="norm", kind="BatchNorm1d", training=True, settings={"momentum": 0.1}, has_start_statistics=False
)


def probed(folder: Path, **facts: Any) -> Run:
    usual: dict[str, Any] = {"step": 99, "train_loss": 0.01, "eval_loss": 0.01, "eval_again": 0.01}
    return write_run(folder, EvalModeProbe(**(usual | facts)), NORM)


def test_dropout_in_eval_mode_is_named_with_its_line(tmp_path: Path) -> None:
    op = RandomOp(site="layers.0", op="aten.bernoulli_", source="net.py:18")
    finding = only(random_evaluations, probed(tmp_path / "run", eval_again=0.02, random_ops=(op,)))
    assert (finding.rule, finding.severity) == ("stochastic-eval", Severity.ERROR)
    assert (finding.site, finding.op, finding.source) == ("layers.0", "aten.bernoulli_", "net.py:18")
    assert "the same batch gives 0.01 and then 0.02" in finding.why


def test_a_sample_that_the_model_draws_may_be_its_purpose(tmp_path: Path) -> None:
    op = RandomOp(site="<model>", op="aten.randn_like", source="net.py:18")
    assert (
        only(random_evaluations, probed(tmp_path / "run", eval_again=0.02, random_ops=(op,))).severity is Severity.NOTE
    )


def test_what_the_loop_draws_and_what_changes_nothing_is_silent(tmp_path: Path) -> None:
    op = RandomOp(site="<loop>", op="aten.bernoulli_", source="train.py:3")
    assert random_evaluations(probed(tmp_path / "a", eval_again=0.02, random_ops=(op,))) == []
    assert random_evaluations(probed(tmp_path / "b", random_ops=(replace(op, site="net", op="aten.randn"),))) == []


@pytest.mark.parametrize("evaluated", [0.18, float("inf")])
def test_the_same_batch_with_another_loss_is_a_gap(evaluated: float, tmp_path: Path) -> None:
    finding = only(evaluation_gaps, probed(tmp_path / "run", eval_loss=evaluated))
    assert (finding.rule, finding.step) == ("train-eval-gap", 99)
    assert "has the loss 0.01 in train mode" in finding.why


@pytest.mark.parametrize(
    "facts",
    [{}, {"train_loss": 0.3, "eval_loss": 0.2}, {"train_loss": 1.2, "eval_loss": 2.0}, {"eval_loss": 0.18, "step": 20}],
)
def test_dropout_and_statistics_that_still_follow_are_no_gap(facts: dict[str, Any], tmp_path: Path) -> None:
    assert evaluation_gaps(probed(tmp_path / "run", **facts)) == []
