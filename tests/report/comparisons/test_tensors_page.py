"""Compared tensors on a page and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from roundoff.compare.tensors.tensor_comparison import TensorsComparison, compare_tensors
from roundoff.report.comparisons.compared_tensors import ComparedTensors
from roundoff.runs import to_json


def compared(folder: Path) -> TensorsComparison:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.savez(folder / "a.npz", **{"<b>x</b>": x, "y": x})
    np.savez(folder / "b.npz", **{"<b>x</b>": x, "y": np.where(x == 4, np.nan, x)})
    return compare_tensors(folder / "a.npz", folder / "b.npz")


def test_the_page_says_the_verdict_and_escapes_names(tmp_path: Path):
    html = ComparedTensors(compared(tmp_path)).page()
    assert "y is the first that differs: 1 value is not finite in only one of the two" in html
    assert "<b>" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert html.count("<tr") == 3


def test_the_object_holds_every_pair_and_its_numbers(tmp_path: Path):
    found = json.loads(to_json(ComparedTensors(compared(tmp_path)).to_object()))
    assert (found["differs"], found["first"]) == (True, "y")
    assert [pair["verdict"] for pair in found["pairs"]] == ["equal", "different"]
    second = found["pairs"][1]
    assert (second["position"], second["num_nonfinite"], second["values"]) == ([1, 1], [0, 1], [4.0, "nan"])
    assert math.isclose(found["pairs"][0]["cosine"], 1)
