from pathlib import Path

import pytest

from roundoff.diagnose.diagnosis import RunView, view_run
from roundoff.report.run_page import section as room
from roundoff.report.run_page.recorded_ops import StepResults, step_rows
from roundoff.report.run_page.section import choose_steps
from tests.report.sample_runs import BAD_STEP, diagnosed, record_run


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view_run(diagnosed(record_run(tmp_path_factory.mktemp("rows") / "run")))


def rows_of(view: RunView) -> list[StepResults]:
    return step_rows(choose_steps(view)[0])


def test_a_step_has_its_results_in_the_order_of_computing(view: RunView):
    good, _ = rows_of(view)
    events = [e for e in view.run.iter_events(step=0, rank=0) if e.output.startswith("output")]
    assert good.num_results == len(events) == good.rows.num_rows
    assert good.rows["order"].to_list() == sorted(event.order for event in events)
    assert good.rows["place"].to_list() == list(range(len(events)))
    assert good.flow is None
    assert good.is_flow_known


def test_bad_values_are_followed_in_the_step_that_has_some(view: RunView):
    _, bad = rows_of(view)
    assert bad.chosen.step == BAD_STEP
    assert bad.flow is not None
    assert bad.flow.origin is not None
    assert (bad.flow.origin.site, bad.flow.origin.op) == ("body", "aten.bmm")


def test_thinning_keeps_the_origin_and_the_bad_before_the_rest(view: RunView, monkeypatch: pytest.MonkeyPatch):
    whole = rows_of(view)[1]
    assert whole.flow is not None
    num_bad = 1 + len(whole.flow.came_from)
    monkeypatch.setattr(room, "MAX_RESULTS_OF_STEP", num_bad + 3)
    thinned = rows_of(view)[1]
    assert thinned.rows.num_rows == num_bad + 3 < thinned.num_results
    orders = thinned.rows["order"].to_list()
    assert orders == sorted(orders)
    assert whole.flow.start in orders
    kept_bad = sum(count > 0 for count in thinned.rows["nonfinite"].to_list())
    assert kept_bad >= num_bad - 10  # some room is kept for what came just before the origin


def test_thinning_keeps_the_largest_magnitude_of_a_good_step(view: RunView, monkeypatch: pytest.MonkeyPatch):
    largest = max(x for x in rows_of(view)[0].rows["absmax"].to_list() if x == x)
    monkeypatch.setattr(room, "MAX_RESULTS_OF_STEP", 8)
    assert largest in rows_of(view)[0].rows["absmax"].to_list()


def test_a_chosen_step_without_results_is_empty(tmp_path: Path):
    run = record_run(tmp_path / "run", is_broken=False)
    (step, _) = choose_steps(view_run(run))[0]
    (made,) = step_rows([room.ChosenStep(step=7, rank=0, holder=step.holder, is_replay=False, is_telling=False)])
    assert (made.num_results, made.rows.num_rows) == (0, 0)
