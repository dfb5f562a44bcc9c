"""What a watch leaves of a planted fault is diagnosed with its rule, place and words; healthy twins are silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose import diagnose_run
from roundoff.runs import (
    Anomaly,
    Finding,
    Metrics,
    Origin,
    ReplayInfo,
    Run,
    Severity,
    to_json,
)
from tests.diagnose.planted import BAD_STEP, mlp_with, train, watched
from tests.run_folders import losses, write_run

NAN_LOSS = (1.5, 1.4, torch.nan)
LOSS = Anomaly(step=BAD_STEP, kind="loss", value=torch.nan)
GRADIENT = Anomaly(step=BAD_STEP, kind="gradient", name="0.weight")


def replaying(function: Callable[[Tensor], Tensor], **how: Any) -> Callable[[Path], Run]:
    return lambda folder: train(mlp_with(function), folder, steps=[BAD_STEP], num_steps=BAD_STEP + 1, **how)


def verdict(run: Run) -> Finding:
    (finding,) = diagnose_run(run).findings
    return finding


def at(op: str, phase: str = "forward", site: str = "1.1", **fields: Any) -> Origin:
    return Origin(step=BAD_STEP, phase=phase, site=site, op=op, overload=op.partition("#")[0], **fields)


def product(x: Tensor) -> Tensor:
    return (x * 300) @ (x * 300).T @ x


def test_overflow_says_the_reach_the_product_the_spread_and_the_override(tmp_path: Path) -> None:
    origin = at("aten.mm#0", is_finite_in_fp64=True, fp64_absmax=2.9e6, bad_index=(3, 3))
    run = watched(
        tmp_path / "run", replaying(product, dtype=torch.float16), anomalies=[LOSS], losses=NAN_LOSS, origin=origin,
        recipe="O2",
    )  # fmt: skip
    finding = verdict(run)
    assert (finding.rule, finding.step, finding.site, finding.op) == ("overflow", BAD_STEP, "1.1", "aten.mm#0")
    assert finding.severity is Severity.ERROR
    assert finding.title == "fp16 matmul overflowed"
    assert finding.why == (
        "its inputs reach 288, the product 2.9e6 exceeds 65504; in fp64 it is finite "
        "(first in sample 3 of the batch)\n"
        "The infinity reaches the loss and all 4 gradients. Loss and weights were fine up to step 1."
    )
    line = finding.source
    assert finding.fix == (
        'keep this layer wide:  apply_recipe(model, optimizer, "O2", overrides={"1.1": "fp32"})\n'
        f"or scale its factors before the matmul, not the product after it ({line})"
    )
    assert [related.rule for related in finding.related] == ["step-on-nonfinite-gradients"]


@pytest.mark.parametrize(
    ("is_finite", "rule"), [(True, "overflow"), (False, "domain-error"), (None, "domain-error")], ids=str
)
def test_fp64_decides_between_range_and_domain(is_finite: bool | None, rule: str, tmp_path: Path) -> None:
    origin = at("aten.div#0", is_finite_in_fp64=is_finite, fp64_absmax=1e9 if is_finite else None)
    run = watched(tmp_path / "run", replaying(lambda x: x / (x - x)), losses=NAN_LOSS, anomalies=[LOSS], origin=origin)
    assert verdict(run).rule == rule


def test_an_exponential_beyond_fp64_is_still_an_overflow(tmp_path: Path) -> None:
    origin = at("aten.exp#0", is_finite_in_fp64=False)
    function = replaying(lambda x: x * torch.exp(x.abs() * 1e4))
    finding = verdict(watched(tmp_path / "run", function, losses=NAN_LOSS, anomalies=[LOSS], origin=origin))
    assert finding.rule == "overflow"
    assert "overflows in fp64 too" in finding.why


def test_a_fully_masked_row_names_the_sample(tmp_path: Path) -> None:
    mask = (torch.arange(6) == 4)[:, None]
    attention = replaying(lambda x: torch.softmax((x @ x.T).masked_fill(mask, -torch.inf), -1) @ x)
    origin = at("aten._softmax#0", bad_index=(4, 0), is_finite_in_fp64=False)
    finding = verdict(watched(tmp_path / "run", attention, losses=NAN_LOSS, anomalies=[LOSS], origin=origin))
    assert (finding.rule, finding.site, finding.op) == ("masked-softmax", "1.1", "aten._softmax#0")
    assert finding.why.startswith("a row of sample 4 of the batch is masked as a whole")


def test_a_branch_not_taken_is_a_domain_error_though_the_loss_is_finite(tmp_path: Path) -> None:
    branch = replaying(lambda x: torch.where(x > 0, torch.sqrt(x), 0.0))
    finding = verdict(watched(tmp_path / "run", branch, anomalies=[GRADIENT]))
    assert (finding.rule, finding.op, finding.phase) == ("domain-error", "aten.sqrt#0", "forward")
    assert "The NaN reaches 2 of 4 gradients. The loss does not show it" in finding.why
    assert "mask the argument" in finding.fix


def test_a_gradient_that_does_not_exist_names_the_op_it_is_of(tmp_path: Path) -> None:
    branch = replaying(lambda x: torch.where(x > 0, torch.sqrt(x * (x > 0)), x))
    finding = verdict(watched(tmp_path / "run", branch, anomalies=[GRADIENT]))
    assert (finding.rule, finding.phase, finding.site) == ("domain-error", "backward", "1.1")
    assert finding.title == "division by zero in the backward of sqrt"
    assert finding.why.startswith("30 of 48 divisors are 0; ")


def train_in_half_precision_with_adam(folder: Path) -> Run:
    return train(
        mlp_with(F.relu), folder, dtype=torch.float16, optimizer=torch.optim.Adam, num_steps=1,
        loss=lambda logits, labels: F.cross_entropy(logits.float(), labels) * 1e-4,
    )  # fmt: skip


def test_an_update_in_half_precision_blames_eps(tmp_path: Path) -> None:
    anomaly = Anomaly(step=0, kind="weight", name="0.weight")
    finding = verdict(watched(tmp_path / "run", train_in_half_precision_with_adam, step=0, anomalies=[anomaly]))
    assert (finding.rule, finding.step, finding.phase) == ("nonfinite-update", 0, "optimizer")
    assert finding.op == "aten.addcdiv_#0"
    assert "eps and the squares of small gradients round to 0 in fp16" in finding.why


def test_a_nan_in_the_batch_names_sample_and_feature(tmp_path: Path) -> None:
    spoilt = torch.ones(6, 4)
    spoilt[5, 2] = torch.nan
    run = watched(
        tmp_path / "run",
        replaying(F.relu, batch=lambda x, step: spoilt if step == BAD_STEP else x),
        anomalies=[LOSS], losses=NAN_LOSS, batch={"call0:0": spoilt.numpy(), "call1:1": np.arange(6)},
    )  # fmt: skip
    finding = verdict(run)
    assert (finding.rule, finding.step, finding.site) == ("nonfinite-input", BAD_STEP, "<model>")
    assert "the first in sample 5 of the batch, feature 2" in finding.why


def test_a_batch_without_valid_targets_is_benign_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    ignored = replaying(lambda x: x, labels=lambda y, step: torch.full_like(y, -100) if step == BAD_STEP else y)
    finding = verdict(watched(tmp_path / "run", ignored, anomalies=[LOSS], losses=(*NAN_LOSS, 1.2)))
    assert (finding.rule, finding.severity) == ("no-valid-targets", Severity.WARNING)
    assert finding.related == ()


def test_a_step_that_loss_scaling_left_out_is_silent(tmp_path: Path) -> None:
    """The gradients are infinite because of the scale, the loss is not."""
    scaled = replaying(lambda x: x, dtype=torch.float16, loss=lambda a, b: F.cross_entropy(a.float(), b) * 2.0**30)
    run = watched(tmp_path / "run", scaled, anomalies=[GRADIENT], skipped=[BAD_STEP])
    assert diagnose_run(run).findings == ()


def test_a_skipped_step_whose_loss_is_bad_is_a_warning(tmp_path: Path) -> None:
    run = watched(
        tmp_path / "run", replaying(product, dtype=torch.float16), anomalies=[LOSS], losses=(*NAN_LOSS, 1.2),
        skipped=[BAD_STEP],
    )  # fmt: skip
    finding = verdict(run)
    assert (finding.rule, finding.severity) == ("overflow", Severity.WARNING)
    assert "The optimizer's step was skipped" in finding.why
    assert finding.related == ()


def test_statistics_that_keep_the_batch_of_a_skipped_step_are_the_verdict(tmp_path: Path) -> None:
    run = watched(
        tmp_path / "run", replaying(product, dtype=torch.float16), losses=(*NAN_LOSS, 1.2), skipped=[BAD_STEP],
        anomalies=[LOSS, Anomaly(step=BAD_STEP, kind="buffer", name="body.1.running_var")],
    )  # fmt: skip
    finding = verdict(run)
    assert (finding.rule, finding.step) == ("norm-statistics-nonfinite", BAD_STEP)
    assert (finding.site, finding.parameter) == ("body.1", "body.1.running_var")
    assert [related.rule for related in finding.related] == ["overflow"]


def test_without_a_replay_only_the_loss_is_known(tmp_path: Path) -> None:
    finding = verdict(write_run(tmp_path / "run", losses(1.0, torch.nan)))
    assert (finding.rule, finding.step) == ("loss-nonfinite", 1)
    assert "was not replayed" in finding.why


def test_without_a_replay_a_step_on_bad_gradients_is_the_finding(tmp_path: Path) -> None:
    finding = verdict(write_run(tmp_path / "run", Metrics(step=BAD_STEP, loss=1.0), GRADIENT))
    assert (finding.rule, finding.step, finding.parameter) == ("step-on-nonfinite-gradients", BAD_STEP, "0.weight")


def test_weights_that_were_bad_before_are_said_to_come_from_an_earlier_step(tmp_path: Path) -> None:
    late = BAD_STEP + 1
    run = watched(
        tmp_path / "run",
        lambda folder: train(mlp_with(lambda x: torch.where(x > 0, torch.sqrt(x), 0.0)), folder, steps=[late]),
        step=late, anomalies=[Anomaly(step=late, kind="loss", value=torch.nan)], losses=(1.5, 1.4, 1.3, torch.nan),
    )  # fmt: skip
    finding = verdict(run)
    assert (finding.rule, finding.step) == ("loss-nonfinite", late)
    assert "0.weight was not finite when the step began: it comes from an earlier step" in finding.why


def test_an_earlier_replay_that_holds_the_origin_is_preferred(tmp_path: Path) -> None:
    branch = replaying(lambda x: torch.where(x > 0, torch.sqrt(x), 0.0))
    anomaly = Anomaly(step=BAD_STEP + 1, kind="loss", value=torch.nan)
    run = watched(tmp_path / "run", branch, anomalies=[anomaly], losses=(1.5, 1.4, 1.3, torch.nan))
    finding = verdict(run)
    assert (finding.rule, finding.step, finding.op) == ("domain-error", BAD_STEP, "aten.sqrt#0")


def test_a_replay_that_breaks_earlier_than_the_training_did_gives_the_op_but_not_the_step(tmp_path: Path) -> None:
    """A module that counts its calls does in the replay what it did only one step later."""
    late = BAD_STEP + 1
    info = ReplayInfo(step=BAD_STEP, snapshot_step=BAD_STEP, is_identical=False, first_difference="loss")
    run = watched(
        tmp_path / "run", replaying(product, dtype=torch.float16), replay_info=info, losses=(1.5, 1.4, 1.3, torch.nan),
        anomalies=[Anomaly(step=late, kind="loss", value=torch.nan)],
    )  # fmt: skip
    first, second = diagnose_run(run).findings
    assert (first.rule, first.step, first.op, first.confidence) == ("overflow", late, "aten.mm#0", 0.7)
    assert second.rule == "nondeterministic-step"


def test_a_constant_that_is_not_finite_is_named(tmp_path: Path) -> None:
    origin = at("aten.mul#0", is_finite_in_fp64=False, arguments={"self": {"tensor": "self"}, "other": torch.inf})
    times_infinity = replaying(lambda x: x.relu() * torch.inf)
    finding = verdict(watched(tmp_path / "run", times_infinity, losses=NAN_LOSS, anomalies=[LOSS], origin=origin))
    assert (finding.rule, finding.op) == ("domain-error", "aten.mul#0")
    assert finding.title == "mul has a constant argument that is not finite"
    assert finding.fix == f"check where the constant comes from ({finding.source})"


@pytest.mark.parametrize(
    ("is_identical", "is_eager", "rules"),
    [(False, False, ["nondeterministic-step"]), (False, True, []), (True, False, []), (None, False, [])],
)
def test_a_replay_that_differs_is_a_finding_unless_it_was_compiled(
    is_identical: bool | None, is_eager: bool, rules: list[str], tmp_path: Path
) -> None:
    info = ReplayInfo(
        step=BAD_STEP, snapshot_step=1, is_identical=is_identical, is_eager=is_eager, first_difference="loss"
    )
    run = watched(tmp_path / "run", replaying(F.relu), replay_info=info)
    assert [finding.rule for finding in diagnose_run(run).findings] == rules


def test_the_first_op_that_differs_is_named_where_the_run_holds_the_step_twice(tmp_path: Path) -> None:
    def noisy(seed: int) -> Callable[[Tensor], Tensor]:
        return lambda x: (x * 2).relu() + torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))

    run = train(mlp_with(noisy(1)), tmp_path / "run", steps=[BAD_STEP])
    replay = tmp_path / "run" / "replay" / f"step{BAD_STEP}"
    train(mlp_with(noisy(2)), replay, steps=[BAD_STEP])
    info = ReplayInfo(step=BAD_STEP, snapshot_step=BAD_STEP, is_identical=False, first_difference="loss")
    (replay / "replay-rank0.json").write_text(to_json(asdict(info)))
    finding = verdict(run)
    assert (finding.rule, finding.step, finding.site) == ("nondeterministic-step", BAD_STEP, "1.1")
    assert (finding.op, finding.phase) == ("aten.randn#0", "forward")
    assert "aten.randn#0 in 1.1 is the first op with a different result" in finding.why


def test_a_bad_value_that_came_over_from_another_rank_is_reported_once(tmp_path: Path) -> None:
    for rank in range(2):
        seen = Anomaly(step=0, kind="loss", value=torch.nan)
        run = write_run(tmp_path / "run", losses(torch.nan), seen, rank=rank, ranks=2)
    finding = verdict(run)
    assert (finding.rule, finding.rank) == ("loss-nonfinite", 0)


class Norm(nn.Module):
    """A batch norm whose statistics take in what comes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def test_a_healthy_training_is_silent_and_says_what_was_checked(tmp_path: Path) -> None:
    run = watched(tmp_path / "run", lambda folder: train(Norm(), folder, steps=[BAD_STEP]))
    diagnosis = diagnose_run(run)
    assert diagnosis.findings == ()
    assert diagnosis.is_clean
    assert "jumps of the loss" in [answer.checks for answer in diagnosis.answers]
