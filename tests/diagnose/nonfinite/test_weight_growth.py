"""An overflow names the update that grew the weights before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.nonfinite.bad_step import BadStep
from roundoff.diagnose.nonfinite.values import update_before
from roundoff.runs import Run
from tests.run_folders import parameter_rows, write_run

BAD = BadStep(
    step=7,
    events_step=7,
    rank=0,
    anomalies=(),
    metrics=None,
    was_skipped=False,
    was_undone=False,
    events=None,
    place=None,
    origin=None,
)


def write_weights(folder: Path, *, weight_update: float, weight: float) -> Run:
    """Seven steps of a weight and of a bias that begins at 0; the last update of the weight is as given."""
    weights = [(2.0, 0.02)] * 6 + [(weight, weight_update)]
    rows = [
        row
        for step, (l2, update) in enumerate(weights)
        for row in (
            {"step": step, "parameter": "fc.weight", "num_elements": 12, "l2": l2, "update_l2": update},
            {"step": step, "parameter": "fc.bias", "num_elements": 3, "l2": 0.01 * (step + 1), "update_l2": 0.01},
        )
    ]
    return write_run(folder, parameter_rows(rows))


def test_names_the_step_and_the_parameter_of_the_update(tmp_path: Path) -> None:
    finding = update_before(write_weights(tmp_path / "run", weight_update=40.0, weight=41.0), BAD)
    assert finding is not None
    assert (finding.step, finding.parameter, finding.site) == (6, "fc.weight", "fc")
    assert finding.why == "the update of step 6 has the norm 40, the parameter after it 41"


@pytest.mark.parametrize("update", [0.02, 0.2])
def test_is_silent_on_ordinary_updates_and_on_biases_that_begin_at_zero(update: float, tmp_path: Path) -> None:
    assert update_before(write_weights(tmp_path / "run", weight_update=update, weight=2.0), BAD) is None


def test_is_silent_where_no_parameters_were_measured(tmp_path: Path) -> None:
    assert update_before(write_run(tmp_path / "run"), BAD) is None
