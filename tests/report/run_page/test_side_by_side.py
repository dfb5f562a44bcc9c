"""Two runs side by side."""

import math
import re
from pathlib import Path

from roundoff.report.run_page.against_reference import side_by_side
from roundoff.runs import CachedRun
from tests.report.sample_runs import write_metrics_run


def rows(html: str) -> dict[str, tuple[str, str, bool]]:
    found = re.findall(r'<tr( class="differs")?><th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', html)
    return {name: (reference, candidate, bool(mark)) for mark, name, reference, candidate in found}


def test_each_row_tells_both_runs_and_marks_what_differs(tmp_path: Path):
    reference = CachedRun.of(write_metrics_run(tmp_path / "a", [2.0, 1.0, 1.5], recipe="fp32"))
    candidate = CachedRun.of(write_metrics_run(tmp_path / "b", [2.0, math.nan], recipe="<O2>"))
    content = rows(side_by_side(reference, candidate))
    assert content["recipe"] == ("fp32", "&lt;O2&gt;", True)
    assert content["steps"] == ("3", "2", True)
    assert content["first loss"] == ("2", "2", False)
    assert content["lowest loss"] == ("1 in step 1", "2 in step 0", True)
    assert content["last loss"] == ("1.5", "nan", True)
    assert content["non-finite losses"] == ("-", "1", True)
    assert content["skipped steps"] == ("1", "1", False)
    assert "last evaluation loss" not in content


def test_a_damaged_file_leaves_its_cells_empty(tmp_path: Path):
    run = write_metrics_run(tmp_path / "a", [2.0])
    other = CachedRun.of(write_metrics_run(tmp_path / "b", [1.0]))
    (run.path / "metrics-rank0.jsonl").write_text("broken\n")
    assert rows(side_by_side(CachedRun.of(run), other))["first loss"] == ("-", "1", True)
