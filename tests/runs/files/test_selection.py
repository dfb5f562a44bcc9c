import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundoff.errors import UsageError
from roundoff.runs import Rows
from roundoff.runs.files.table_parts import Selection


@pytest.fixture
def rows(make_events) -> Rows:
    return Rows.concat([make_events(step).to_rows() for step in range(4)])


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(), 24),
        (Selection(step=2), 6),
        (Selection(step=0), 6),
        (Selection(step=range(1, 3)), 12),
        (Selection(step={0, 3, 99}), 12),
        (Selection(step=[]), 0),
        (Selection(site="blocks.0.mlp"), 12),
        (Selection(site="blocks.*"), 24),
        (Selection(site="blocks"), 0),
        (Selection(site="blocks.[1-9].*"), 12),
        (Selection(phase="backward"), 8),
        (Selection(op="aten.bmm"), 12),
        (Selection(op="aten.bmm#0"), 4),
        (Selection(op="aten.*#1"), 8),
        (Selection(op="aten.bmm#*"), 12),
        (Selection(op="aten.bmm#7"), 0),
        (Selection(step=1, site="*.1.*", phase="forward"), 1),
    ],
)
def test_rows_are_selected(rows: Rows, selection: Selection, count: int):
    assert selection.filter(rows).num_rows == count


def test_a_number_must_stand_after_the_sign():
    with pytest.raises(UsageError, match=r"Invalid op 'aten\.bmm#first'"):
        _ = Selection(op="aten.bmm#first").columns


def test_only_the_columns_that_decide_are_needed():
    assert Selection(rank=3).columns == set()
    assert Selection(op="a#1", step=3).columns == {"op", "nth", "step"}


@given(st.sets(st.integers(0, 20)), st.integers(0, 20), st.integers(0, 5))
def test_parts_are_skipped_exactly_when_they_hold_no_step(steps: set[int], first: int, length: int):
    last = first + length
    assert Selection(step=steps).may_hold(first, last) == any(first <= step <= last for step in steps)


def test_patterns_are_those_of_the_shell(rows: Rows):
    for pattern in ("blocks.?.mlp", "*mlp", "BLOCKS.*", "blocks.0.ml[!q]"):
        expected = sum(fnmatch.fnmatchcase(site, pattern) for site in rows["site"].to_list())
        assert Selection(site=pattern).filter(rows).num_rows == expected
