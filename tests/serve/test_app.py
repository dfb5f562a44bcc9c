"""The pages of a real server: the list, a run, two runs, tensors; and what is answered instead of them."""

from __future__ import annotations

import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from roundoff.diagnose.diagnosis import view_run
from roundoff.report.run_page.document import run_page
from roundoff.runs import Run
from roundoff.serve.runs_folder import OpenedRun
from tests.report.sample_runs import record_run, write_metrics_run
from tests.serve.conftest import HOSTILE_NAME
from tests.serve.serving import PATIENCE_SECONDS, Server, serving


def test_the_list_names_every_run_and_says_what_is_wrong_with_a_damaged_one(server: Server) -> None:
    answer = server.ask("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for name in ("broken", "reference", "candidate", "tensors"):
        assert f'<a href="/runs/{name}">{name}</a>' in answer.text
    assert "fp16 matmul overflowed" in answer.text
    assert "run.json&#x27; cannot be read. it is not JSON" in answer.text
    assert "no run</a>" not in answer.text


def test_hostile_names_are_text_and_their_links_lead_to_them(server: Server) -> None:
    page = server.ask("/").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    address = f"/runs/{quote(HOSTILE_NAME, safe='')}"
    assert f'href="{address}"' in page
    for path in (address, f"{address}/page", f"{address}/tensors"):
        answer = server.ask(path)
        assert answer.status == 200
        assert "<script>alert" not in answer.text


def test_the_page_of_a_run_is_the_one_that_report_writes(server: Server, folder: Path) -> None:
    expected = run_page(view_run(Run.open(folder / "broken"))).html
    answer = server.ask("/runs/broken/page")
    assert (answer.text, answer.headers["content-type"]) == (expected, "text/html; charset=utf-8")
    packed = server.ask("/runs/broken/page", accept_encoding="br, gzip;q=0.8")
    assert (gzip.decompress(packed.body), packed.headers["content-encoding"]) == (answer.body, "gzip")
    assert 'src="/runs/broken/page"' in server.ask("/runs/broken").text


def test_two_runs_that_were_picked_are_compared_the_first_being_the_reference(server: Server) -> None:
    picked = server.ask("/compare?run=reference&run=candidate")
    assert (picked.status, picked.headers["location"]) == (303, "/compare?reference=reference&candidate=candidate")
    frame = server.ask("/compare?reference=reference&candidate=candidate").text
    assert 'src="/compare/page?reference=reference&amp;candidate=candidate"' in frame
    page = server.ask("/compare/page?reference=reference&candidate=candidate").text
    assert "<title>candidate against reference</title>" in page
    assert "aten.native_layer_norm#0 introduces the first difference" in page


def test_a_page_that_the_browser_has_is_not_sent_again_until_the_run_changes(tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "run", [2.0, 1.0])
    with serving(tmp_path) as server:
        first = server.ask("/runs/run/page")
        again = server.ask("/runs/run/page", if_none_match=first.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        with (tmp_path / "run" / "metrics-rank0.jsonl").open("a") as file:
            file.write('{"step": 2, "loss": 0.5, "skipped": false}\n')
        changed = server.ask("/runs/run/page", if_none_match=first.headers["etag"])
        assert changed.status == 200
        assert changed.headers["etag"] != first.headers["etag"]


def test_a_run_with_tensors_leads_to_them_and_to_a_look_at_each(server: Server) -> None:
    assert 'href="/runs/tensors/tensors"' in server.ask("/runs/tensors").text
    assert 'href="/runs/broken/tensors"' not in server.ask("/runs/broken").text
    assert "contains no whole tensors" in server.ask("/runs/broken/tensors").text
    assert "forward/0/&lt;model&gt;/aten.addmm#0:output0" in server.ask("/runs/tensors/tensors").text
    key = quote("forward/0/<model>/aten.addmm#0:output0", safe="")
    look = server.ask(f"/runs/tensors/tensors?step=0&name={key}").text
    assert "<dt>shape</dt><dd>3x2</dd>" in look
    assert f"/api/runs/tensors/tensor.npy?of=step&amp;step=0&amp;rank=0&amp;name={key}" in look


def test_others_are_answered_while_a_page_is_made(tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "run", [1.0])
    has_begun, may_end = threading.Event(), threading.Event()

    def make(candidate: OpenedRun, reference: OpenedRun | None) -> str:
        has_begun.set()
        assert may_end.wait(PATIENCE_SECONDS)
        return "made"

    with serving(tmp_path, make=make) as server, ThreadPoolExecutor() as clients:
        pages = [clients.submit(server.ask, "/runs/run/page") for _ in range(5)]
        assert has_begun.wait(PATIENCE_SECONDS)
        assert server.ask("/").status == 200
        assert server.ask("/api/runs/run").status == 200
        assert not any(page.done() for page in pages)
        may_end.set()
        assert {page.result(PATIENCE_SECONDS).text for page in pages} == {"made"}


def test_a_fault_of_ours_is_reported_as_one_with_all_headers(tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "run", [1.0])

    def make(candidate: OpenedRun, reference: OpenedRun | None) -> str:
        raise ZeroDivisionError("secret detail")

    with serving(tmp_path, make=make) as server:
        answer = server.ask("/runs/run/page")
        assert answer.status == 500
        assert "Internal error of roundoff" in answer.text
        assert "secret detail" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert server.ask("/").status == 200


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        page = server.ask("/").text
        assert "There are no runs in" in page
        assert f"roundoff run train.py --runs {tmp_path}" in page
        assert server.json("/api/runs") == {"runs": []}


def test_a_folder_that_is_a_run_itself_is_served(tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "one", [1.0])
    with serving(tmp_path / "one") as server:
        assert [run["name"] for run in server.json("/api/runs")["runs"]] == ["one"]
        assert server.ask("/runs/one/page").status == 200


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/nowhere", 404, "does not exist"),
        ("/runs/none", 404, "There is no run &#x27;none&#x27;"),
        ("/runs/none/page", 404, "There is no run"),
        ("/runs/no%20run", 404, "There is no run"),
        ("/runs/damaged", 422, "cannot be read"),
        ("/runs/damaged/page", 422, "cannot be read"),
        ("/runs/broken?mode=fast", 400, "There is no parameter &#x27;mode&#x27;"),
        ("/compare", 400, "parameter &#x27;reference&#x27; is missing"),
        ("/compare?reference=broken", 400, "parameter &#x27;candidate&#x27; is missing"),
        ("/compare?reference=broken&candidate=none", 404, "There is no run"),
        ("/compare?reference=broken&candidate=broken", 400, "selected twice"),
        ("/compare?run=broken", 400, "1 run is selected"),
        ("/compare?run=a&run=b&run=c", 400, "3 runs are selected"),
        ("/compare/page?reference=damaged&candidate=broken", 422, "cannot be read"),
        ("/runs/tensors/tensors?step=9", 404, "no whole tensors for step 9"),
        ("/runs/tensors/tensors?step=0&name=none", 404, "There is no tensor"),
        ("/runs/tensors/tensors?step=-1", 400, "is invalid"),
    ],
)
def test_what_cannot_be_shown_is_explained_in_a_sentence(server: Server, path: str, status: int, sentence: str) -> None:
    answer = server.ask(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert sentence in answer.text


ESCAPES = (
    "/runs/..",
    "/runs/../../etc/passwd",
    "/runs/%2e%2e",
    "/runs/%2e%2e%2f%2e%2e%2fetc",
    "/runs/..%2fsecret",
    "/runs/%252e%252e%252fsecret",
    "/runs/..%5csecret",
    "/runs/%2fetc",
    "/runs//etc/passwd",
    "/runs/broken%00",
    "/runs/%00",
    "/runs/.",
    "/runs/%ff%fe",
    "/runs/secret",
    "/runs/broken/../../secret",
    "/runs/broken/page/../../../secret",
    "/runs/broken/run.json",
    "//etc/passwd",
    "/compare/page?reference=..%2fsecret&candidate=broken",
    "/compare/page?reference=broken&candidate=%2e%2e%2fsecret",
)


@pytest.mark.parametrize(
    "path", [*ESCAPES, *(path.replace("/runs/", "/api/runs/") for path in ESCAPES if "runs" in path)]
)
def test_nothing_outside_the_folder_is_served(server: Server, folder: Path, path: str) -> None:
    if not (folder.parent / "secret").exists():
        write_metrics_run(folder.parent / "secret", [1.0], name="SECRET")
    answer = server.ask(path)
    assert answer.status == 404
    assert b"SECRET" not in answer.body
    assert b"root:" not in answer.body


def test_links_that_lead_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "outside", [1.0], name="SECRET")
    record_run(tmp_path / "runs" / "deep", is_broken=False)
    write_metrics_run(tmp_path / "runs" / "file", [1.0])
    write_metrics_run(tmp_path / "runs" / "inside", [1.0])
    write_metrics_run(tmp_path / "runs" / "pipe", [1.0])
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "outside")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs" / "inside")
    (tmp_path / "runs" / "deep" / "tensors").symlink_to(tmp_path / "outside")
    (tmp_path / "runs" / "file" / "metrics-rank0.jsonl").unlink()
    (tmp_path / "runs" / "file" / "metrics-rank0.jsonl").symlink_to(tmp_path / "outside" / "metrics-rank0.jsonl")
    os.mkfifo(tmp_path / "runs" / "pipe" / "findings.json")
    with serving(tmp_path / "runs") as server:
        for name in ("linked", "deep", "file", "pipe"):
            for path in (f"/runs/{name}", f"/runs/{name}/page", f"/api/runs/{name}", f"/api/runs/{name}/metrics"):
                answer = server.ask(path)
                assert (path, answer.status) == (path, 403)
                assert b"is not served" in answer.body
        rows = {run["name"]: run for run in server.json("/api/runs")["runs"]}
        assert {name for name, row in rows.items() if "problem" in row} >= {"linked", "file", "pipe"}
        assert "SECRET" not in server.ask("/").text
        assert server.ask("/runs/again/page").status == 200


def test_links_to_nothing_and_in_circles_hide_no_link_that_leads_out(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in ("nothing", "circle", "both"):
        write_metrics_run(folder / name, [1.0])
    for nth in range(20):
        (folder / "both" / f"nothing-{nth}").symlink_to("nothing")
        (folder / "nothing" / f"nothing-{nth}").symlink_to("nothing")
    (folder / "both" / "out").symlink_to("/etc/passwd")
    (folder / "circle" / "circle").symlink_to("circle")
    with serving(folder) as server:
        statuses = {name: server.ask(f"/api/runs/{name}").status for name in ("nothing", "circle", "both")}
        assert statuses == {"nothing": 200, "circle": 403, "both": 403}
        assert [run["name"] for run in server.json("/api/runs")["runs"] if "problem" not in run] == ["nothing"]


def test_a_run_whose_name_is_no_text_costs_its_row_only(tmp_path: Path) -> None:
    write_metrics_run(tmp_path / os.fsdecode(b"\xff\xfe"), [1.0])
    write_metrics_run(tmp_path / "fine", [1.0])
    with serving(tmp_path) as server:
        assert 'href="/runs/fine"' in server.ask("/").text
        assert len(server.json("/api/runs")["runs"]) == 2
        assert server.ask("/runs/%FF%FE").status == 404


def test_a_run_that_claims_a_billion_ranks_is_shown(tmp_path: Path) -> None:
    run = write_metrics_run(tmp_path / "run", [1.0], ranks=10**9)
    write_metrics_run(run.path / "replay" / "step0", [])
    (run.path / "replay" / "step1").mkdir()  # a replay that has just begun
    with serving(tmp_path) as server:
        assert server.ask("/runs/run").status == 200
        assert server.json("/api/runs/run")["tensors"] == []
