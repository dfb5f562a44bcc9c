from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.diagnosis import RunView, view_run
from roundoff.report.run_page import section as room
from roundoff.report.run_page.recorded_ops import steps_section
from tests.report.sample_runs import BAD_STEP, diagnosed, record_run, write_metrics_run


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view_run(diagnosed(record_run(tmp_path_factory.mktemp("steps") / "run")))


@pytest.fixture(scope="module")
def data(view: RunView) -> dict[str, Any]:
    return steps_section(view).data["steps"]


def name(data: dict[str, Any], column: str, step: int, row: int) -> str:
    return str(data["names"][column][data["steps"][step]["columns"][column][row]])


def test_the_origin_is_the_op_that_the_verdict_names(view: RunView, data: dict[str, Any]):
    row = data["steps"][BAD_STEP]["origin"]
    found = view.findings[0]
    op = f"{name(data, 'op', BAD_STEP, row)}#{data['steps'][BAD_STEP]['columns']['nth'][row]}"
    assert (name(data, "site", BAD_STEP, row), op) == (found.site, found.op) == ("body", "aten.bmm#0")


def test_bad_values_flow_forwards_from_the_origin(data: dict[str, Any]):
    step = data["steps"][BAD_STEP]
    assert step["flow"]
    assert all(before < after for before, after in step["flow"])
    reached = {step["origin"]} | {after for _, after in step["flow"]}
    assert all(before in reached for before, _ in step["flow"])
    assert {row for row, count in enumerate(step["columns"]["nonfinite"]) if count} == reached


def test_a_good_step_has_no_origin(data: dict[str, Any]):
    assert (data["steps"][0]["origin"], data["steps"][0]["flow"], data["steps"][0]["masks"]) == (None, [], [])


def test_microbatches_are_reported_where_there_are_several(data: dict[str, Any], tmp_path: Path):
    assert "microbatch" not in data["steps"][0]["columns"]
    run = record_run(tmp_path / "run", num_steps=1, num_microbatches=2, is_broken=False)
    several: Any = steps_section(view_run(run)).data["steps"]
    assert set(several["steps"][0]["columns"]["microbatch"]) == {0, 1}


def test_the_step_of_the_verdict_is_shown_first(view: RunView):
    body = steps_section(view).body
    assert '<option value="0">step 0</option>' in body
    assert f'<option value="1" selected>step {BAD_STEP}, not finite</option>' in body


def test_the_limits_of_formats_are_there_to_be_drawn(data: dict[str, Any]):
    assert data["limits"]["fp16"] == {"largest": 65504.0, "smallest": 2.0**-14}
    assert list(data["limits"]) == ["fp32", "bf16", "fp16", "e5m2", "e4m3"]


def test_what_was_left_out_is_said(view: RunView, monkeypatch: pytest.MonkeyPatch):
    assert list(steps_section(view).thinned) == []
    monkeypatch.setattr(room, "MAX_RESULTS_OF_STEP", 20)
    thinned = steps_section(view)
    (note,) = thinned.thinned
    assert note.startswith("For 2 steps, 40 of ")
    data: Any = thinned.data["steps"]
    assert all(before is not None for before, _ in data["steps"][BAD_STEP]["flow"])


def test_a_run_without_recorded_steps_says_how_to_record_one(tmp_path: Path):
    section = steps_section(view_run(write_metrics_run(tmp_path / "run", [1.0])))
    assert "No step was recorded" in section.body
    assert section.data == {}
