"""How far a training moves by rounding alone, measured by the watch and allowed for by a comparison."""

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.compare.runs.expected_distance import TIMES, TIMES_COARSER, allowed_by, spread_of, unit_of
from roundoff.record import recording
from roundoff.runs import Run
from roundoff.watch.watching import watching
from tests.compare.variants import Variant, transformer_training


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("spread") / "run"
    train = transformer_training(Variant())
    with watching(to=folder):
        train()
    return Run.open(folder)


def test_the_first_step_is_tried_with_parameters_moved_by_a_rounding(watched: Run):
    spread = spread_of(watched, step=0, rank=0)
    forward = [value for place, value in spread.items() if place[1] == "forward" and place[3].startswith("aten.")]
    assert len(forward) > 50
    assert 0 < sorted(forward)[len(forward) // 2] < 1e-5
    parameters = [value for place, value in spread.items() if place[3] == "parameter" and value]
    assert all(1e-8 < value < 4e-7 for value in parameters)
    assert watched.perturbed_run(1) is None


def test_what_it_allows_grows_with_the_format(watched: Run):
    spread = spread_of(watched, step=0, rank=0)
    event = next(event for event in watched.iter_events(step=0, op="aten.addmm") if event.output == "output0")
    known = allowed_by(spread, event, unit=unit_of("float32")) / TIMES
    assert known > 0
    assert allowed_by(spread, event, unit=unit_of("bfloat16")) == pytest.approx(known * TIMES_COARSER * 2**16)
    assert allowed_by(spread, replace(event, nth=99), unit=unit_of("bfloat16")) == 0


def test_a_run_that_was_recorded_only_has_none(tmp_path: Path):
    train = transformer_training(Variant())
    with recording(to=tmp_path / "run", steps=[0]):
        train()
    assert spread_of(Run.open(tmp_path / "run"), step=0, rank=0) == {}
