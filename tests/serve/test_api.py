"""What runs hold, requested as JSON from a real server."""

from __future__ import annotations

import io
import math
from urllib.parse import quote

import numpy as np
import pytest

from tests.serve.conftest import HOSTILE_NAME
from tests.serve.serving import Server

KEY = quote("forward/0/<model>/aten.addmm#0:output0", safe="")


def test_all_runs_are_reported_and_a_damaged_one_costs_its_row_only(server: Server) -> None:
    runs = {run["name"]: run for run in server.json("/api/runs")["runs"]}
    assert set(runs) == {"broken", "reference", "candidate", "tensors", HOSTILE_NAME, "damaged"}
    assert "is not JSON" in runs["damaged"]["problem"]
    broken = runs["broken"]
    assert (broken["state"], broken["num_steps"], broken["last_loss"]) == ("finished", 2, "nan")
    assert broken["findings"] == {"error": 1, "warning": 0, "note": 0}
    assert broken["verdict"] == {"rule": "overflow", "title": "fp16 matmul overflowed", "step": 1}
    assert runs["reference"]["findings"] is None


def test_changes_name_every_run_with_what_changes_when_it_does(server: Server) -> None:
    versions = server.json("/api/changes")["runs"]
    assert set(versions) == {run["name"] for run in server.json("/api/runs")["runs"]}
    assert versions == server.json("/api/changes")["runs"]


def test_runs_that_are_named_are_reported_as_they_are_now(server: Server) -> None:
    runs = server.json("/api/changes?run=broken&run=reference")["runs"]
    assert set(runs) == {"broken", "reference"}
    assert runs["broken"] == {
        "stamp": server.json("/api/runs/broken")["stamp"],
        "state": "finished",
        "detail": "",
        "num_steps": 2,
        "last_loss": "nan",
    }


def test_one_run_is_reported_with_its_findings_and_what_it_holds(server: Server) -> None:
    run = server.json("/api/runs/broken")
    assert run["recorded_steps"] == [0, 1]
    assert run["found"][0]["rule"] == "overflow"
    assert run["info"]["status"] == "finished"
    assert run["stamp"] == server.json("/api/runs/broken")["stamp"]
    assert server.json("/api/runs/tensors")["tensors"] == [{"of": "step", "step": 0, "rank": 0, "title": "step 0"}]
    assert server.json(f"/api/runs/{quote(HOSTILE_NAME, safe='')}")["name"] == HOSTILE_NAME


def test_metrics_come_some_at_a_time(server: Server) -> None:
    first = server.json("/api/runs/reference/metrics?limit=1")
    assert ([each["step"] for each in first["metrics"]], first["next"]) == ([0], 1)
    second = server.json(f"/api/runs/reference/metrics?limit=1&from={first['next']}")
    assert ([each["step"] for each in second["metrics"]], second["next"]) == ([1], None)


def test_events_come_some_at_a_time_and_all_of_them_in_the_end(server: Server) -> None:
    requested, found = "/api/runs/reference/events?step=1&phase=forward", []
    offset: int | None = 0
    while offset is not None:
        answer = server.json(f"{requested}&limit=7&offset={offset}")
        found += answer["events"]
        offset = answer["next"]
    assert found == server.json(f"{requested}&limit=1000")["events"]
    assert len(found) > 7
    assert {event["phase"] for event in found} == {"forward"}


def test_events_are_chosen_by_patterns(server: Server) -> None:
    events = server.json("/api/runs/reference/events?site=stem.*&op=aten.native_layer_norm%230&rank=0")["events"]
    assert {(event["site"], event["op"]) for event in events} == {("stem.0", "aten.native_layer_norm")}
    assert server.json("/api/runs/reference/events?site=nowhere") == {"events": [], "next": None}


def test_a_tensor_is_reported_by_its_numbers_first_values_and_exponents(server: Server) -> None:
    names = [tensor["name"] for tensor in server.json("/api/runs/tensors/tensors?step=0")["tensors"]]
    assert "forward/0/<model>/aten.addmm#0:output0" in names
    look = server.json(f"/api/runs/tensors/tensor?step=0&rank=0&name={KEY}")
    assert (look["dtype"], look["shape"], look["num_elements"], look["num_bytes"]) == ("float32", [3, 2], 6, 24)
    assert look["first"] == look["first"][:2] * 3
    assert (look["min"], look["max"]) == (min(look["first"]), max(look["first"]))
    exponents = [math.floor(math.log2(abs(value))) for value in look["first"]]
    assert look["exponents"] == {str(each): exponents.count(each) for each in sorted(set(exponents))}


def test_a_tensor_is_sent_as_a_file_of_numpy(server: Server) -> None:
    answer = server.ask(f"/api/runs/tensors/tensor.npy?step=0&name={KEY}")
    assert answer.headers["content-disposition"] == (
        'attachment; filename="tensors-forward-0-model-aten.addmm-0-output0.npy"'
    )
    array = np.load(io.BytesIO(answer.body), allow_pickle=False)
    assert array.dtype == np.float32
    look = server.json(f"/api/runs/tensors/tensor?step=0&name={KEY}")
    assert array.reshape(-1).tolist() == look["first"]


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/nowhere", 404, "'/api/nowhere' does not exist."),
        ("/api/runs/none", 404, "There is no run 'none'."),
        ("/api/runs/damaged", 422, "cannot be read."),
        ("/api/changes?run=none", 404, "There is no run 'none'."),
        ("/api/changes?run=damaged", 422, "cannot be read."),
        ("/api/runs/reference/events?site=" + "*a" * 200, 400, "is invalid."),
        ("/api/runs?sort=name", 400, "There is no parameter 'sort'."),
        ("/api/runs/reference/events?stepp=1", 400, "There is no parameter 'stepp'."),
        ("/api/runs/reference/events?step=one", 400, "step=one is invalid."),
        ("/api/runs/reference/events?step=-1", 400, "step=-1 is invalid."),
        ("/api/runs/reference/events?step=1e3", 400, "step=1e3 is invalid."),
        ("/api/runs/reference/events?step=%D9%A1", 400, "is invalid."),
        ("/api/runs/reference/events?step=9999999999999", 400, "is invalid."),
        ("/api/runs/reference/events?limit=0", 400, "limit=0 is invalid."),
        ("/api/runs/reference/events?limit=1001", 400, "limit=1001 is invalid."),
        ("/api/runs/reference/metrics?from=-1", 400, "from=-1 is invalid."),
        ("/api/runs/reference/tensors?step=0", 404, "There are no whole tensors for step 0."),
        ("/api/runs/tensors/tensors?of=weights&step=0", 400, "of=weights is invalid."),
        ("/api/runs/tensors/tensor?step=0", 400, "The parameter 'name' is missing."),
        ("/api/runs/tensors/tensor?name=x", 400, "The parameter 'step' is missing."),
        ("/api/runs/tensors/tensor?step=0&name=x", 404, "There is no tensor 'x' in step 0."),
        ("/api/runs/tensors/tensor?step=0&rank=3&name=x", 404, "There are no whole tensors for step 0, rank 3."),
        ("/api/runs/tensors/tensor.npy?step=0&name=%00", 404, "There is no tensor"),
    ],
)
def test_what_cannot_be_answered_is_explained_in_a_sentence(
    server: Server, path: str, status: int, sentence: str
) -> None:
    answer = server.ask(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert sentence in answer.json["error"]
