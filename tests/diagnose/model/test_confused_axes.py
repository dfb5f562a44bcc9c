"""Axes that are confused, by what the probes say: each kind in its own words, with the shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.model.batch_statistics import mixed_batches
from roundoff.diagnose.model.confused_axes import confused_axes
from roundoff.runs import AxesProbe, BatchMixingProbe, ConfusedAxes
from tests.diagnose.findings import only
from tests.run_folders import write_run


def seen(kind: Any, **fields: Any) -> AxesProbe:
    place = {"function": "view", "site": "attention", "source": "model.py:4", "given": (8, 10, 32), "axis": 1}
    return AxesProbe(step=9, found=(ConfusedAxes(kind=kind, **(place | fields)),))


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        (
            seen("reshape", made=(8, 4, 10, 8), reader="matmul"),
            "what is at (0, 0, 1, 0) after it was at (0, 0, 8) before; matmul then uses the result",
        ),
        (
            seen("classes", function="cross_entropy", given=(8, 5, 12), made=(96, 5)),
            "the scores have shape (8, 5, 12), and cross_entropy gets (96, 5)",
        ),
        (
            seen("softmax", function="softmax", given=(8, 6, 6), made=(8, 6, 6), reader="matmul"),
            "matmul uses axis 2 as what is weighed, but the weights of a query do not add up to 1: those along axis 1",
        ),
        (
            seen("softmax", function="softmax", given=(8, 6), made=(8, 6), reader="nll_loss", axis=0),
            "nll_loss uses axis 1 as classes, but the probabilities of a sample do not add up to 1: those along axis 0",
        ),
        (
            seen("positions", function="add", made=(8, 1, 32), axis=0),
            "add combines samples of shape (8, 10, 32) with a code of shape (8, 1, 32)",
        ),
    ],
    ids=["reshape", "classes", "attention", "logarithms", "positions"],
)
def test_each_kind_says_what_was_measured(probe: AxesProbe, says: str, tmp_path: Path) -> None:
    finding = only(confused_axes, write_run(tmp_path / "run", probe))
    assert (finding.rule, finding.step, finding.site, finding.source) == (
        "axes-confused", 9, "attention", "model.py:4",
    )  # fmt: skip
    assert says in finding.why


def test_a_norm_of_each_sample_over_the_batch_is_not_mere_mixing(tmp_path: Path) -> None:
    over_batch = BatchMixingProbe(step=9, sample=4, changed=(5, 6), site="body", function="normalize", source="a.py:3")
    run = write_run(tmp_path / "run", AxesProbe(step=9, found=()), over_batch)
    finding = only(confused_axes, run)
    assert (finding.rule, finding.site, finding.source) == ("axes-confused", "body", "a.py:3")
    assert "normalize on: it runs along axis 0" in finding.why
    assert mixed_batches(run) == []


def test_axes_that_are_where_they_belong_are_fine(tmp_path: Path) -> None:
    mixing = BatchMixingProbe(step=9, sample=4, changed=(5,), site="body", function="lstm")
    assert confused_axes(write_run(tmp_path / "run", AxesProbe(step=9, found=()), mixing)) == []
