"""A jump of the loss is reported with its kind: the batch, the state, both, or something outside of the steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.diagnose.loss.spike import loss_spikes
from roundoff.runs import Call, EpochDetail, Metrics, Severity, SpikeProbe
from tests.run_folders import write_run

LOSSES = [1.0 + 0.01 * (step % 7) for step in range(40)] + [8.0, 1.0, 1.0]
METRICS = [Metrics(step=step, loss=loss) for step, loss in enumerate(LOSSES)]


def probe(
    loss: float, other_batch: float, earlier_state: float, *, step: int = 40, worst_loss: float | None = None
) -> SpikeProbe:
    return SpikeProbe(
        step=step,
        loss=loss,
        other_batch=other_batch,
        earlier_state=earlier_state,
        batch_size=16,
        worst_sample=5,
        worst_loss=worst_loss,
    )


@pytest.mark.parametrize(
    ("losses", "cause", "fix"),
    [
        ((8.0, 1.1, 7.9), "its batch", "check the batch of this step"),
        ((8.0, 6.0, 1.2), "the state before it", "check the update of step 39"),
        (
            (8.0, 6.0, 7.9),
            "its batch and the state before it",
            "check the batch of this step; and check the up",
        ),
        ((8.0, 1.1, 1.2), "this batch in this state", "clip gradients"),
        ((1.1, 1.1, 1.1), "the state, which was changed between the steps", "look for code that changes weights"),
    ],
    ids=["batch", "state", "both", "together", "outside"],
)
def test_the_sort_is_in_the_title_and_in_the_fix(
    losses: tuple[float, float, float], cause: str, fix: str, tmp_path: Path
) -> None:
    (finding,) = loss_spikes(write_run(tmp_path / "run", METRICS, probe(*losses)))
    assert finding.title == f"the loss jumped from 1.03 to 8 because of {cause}"
    assert finding.fix.startswith(fix)


def test_the_losses_that_tell_are_in_the_why(tmp_path: Path) -> None:
    (finding,) = loss_spikes(write_run(tmp_path / "run", METRICS, probe(8.0, 1.1, 7.9)))
    assert finding.why == (
        "the highest of the 40 losses before it is 1.06\n"
        "The cause is the batch: this batch has a loss of 7.9 in the state before step 39 too, but the previous batch "
        "has a loss of 1.1 in the state of this step."
    )


def test_a_loss_that_is_not_finite_counts_as_high(tmp_path: Path) -> None:
    (finding,) = loss_spikes(write_run(tmp_path / "run", METRICS, probe(8.0, 1.1, float("nan"))))
    assert finding.title.endswith("because of its batch")


def test_a_single_sample_that_makes_the_jump_is_named_in_a_note(tmp_path: Path) -> None:
    one = probe(8.0, 1.1, 7.9, worst_loss=110.0)
    (finding,) = loss_spikes(write_run(tmp_path / "one", METRICS, one))
    assert (finding.severity, finding.title[-10:]) == (Severity.NOTE, "one sample")
    assert "The cause is sample 5 of the batch, whose own loss is 110" in finding.why
    many = probe(8.0, 1.1, 7.9, worst_loss=20.0)
    (finding,) = loss_spikes(write_run(tmp_path / "many", METRICS, many))
    assert finding.severity is Severity.WARNING


def test_a_batch_after_which_losses_stay_high_is_where_other_data_begins(tmp_path: Path) -> None:
    harder = [Metrics(step=41 + i, loss=7.0 - 0.1 * i) for i in range(20)]
    (finding,) = loss_spikes(write_run(tmp_path / "run", [*METRICS[:41], *harder], probe(8.0, 1.1, 7.9)))
    assert (finding.severity, finding.title) == (
        Severity.NOTE, "the loss jumped from 1.03 to 8 because of data that is new to the model"
    )  # fmt: skip
    assert "8 of the next 8 losses are as high" in finding.why


def test_samples_of_another_shape_are_other_data(tmp_path: Path) -> None:
    longer = replace(probe(8.0, 1.1, 7.9), changed_shapes=("(2, 1) to (6, 1)",))
    (finding,) = loss_spikes(write_run(tmp_path / "run", METRICS, longer))
    assert (finding.severity, finding.title[-29:]) == (Severity.NOTE, "data that is new to the model")
    assert "the shape of its samples changes from (2, 1) to (6, 1)." in finding.why


def test_a_loader_that_was_not_used_before_brings_other_data(tmp_path: Path) -> None:
    calls = [Call(step=step, call="epoch", detail=EpochDetail(loader=loader)) for step, loader in ((0, 0), (40, 1))]
    (finding,) = loss_spikes(write_run(tmp_path / "new", METRICS, calls))
    assert (finding.severity, finding.title[-29:]) == (Severity.NOTE, "data that is new to the model")
    again = [replace(call, detail=EpochDetail(loader=0)) for call in calls]
    (finding,) = loss_spikes(write_run(tmp_path / "again", METRICS, again))
    assert finding.severity is Severity.WARNING


def test_the_probe_of_another_step_tells_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", METRICS, probe(8.0, 1.1, 7.9, step=41))
    (finding,) = loss_spikes(run)
    assert finding.title == "the loss jumped from 1.03 to 8"
