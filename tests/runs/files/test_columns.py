import numpy as np
import pytest

from roundoff.runs import EventColumns, Interned
from roundoff.runs.files.columns import HashColumns, ParameterColumns
from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS


@pytest.mark.parametrize(
    ("columns", "table"), [(EventColumns, EVENTS), (ParameterColumns, PARAMETERS), (HashColumns, HASHES)]
)
def test_every_column_of_the_table_can_be_handed_over(columns, table):
    assert {field for field in columns.__dataclass_fields__} == set(table.names)


def test_only_nullable_columns_may_be_left_out():
    optional = {name for name, field in EventColumns.__dataclass_fields__.items() if field.default is None}
    assert optional == {column.name for column in EVENTS.columns if column.nullable}


def test_strings_keep_their_rows_and_nulls(make_events):
    site = Interned(codes=np.array([2, 0, 2, 0, 0, 2], dtype=np.int32), values=["a", "unused", "c"])
    parameter = Interned(codes=np.array([-1, 0, -1, 0, 1, -1], dtype=np.int32), values=["w", "b"])
    table = make_events(0, site=site, parameter=parameter).to_rows()
    assert table["site"].to_list() == ["c", "a", "c", "a", "a", "c"] == site.to_list()
    assert table["parameter"].to_list() == [None, "w", None, "w", "b", None]


def test_strings_that_do_not_occur_are_left_out(make_events):
    site = Interned(codes=np.zeros(6, dtype=np.int32), values=[f"site{i}" for i in range(1000)])
    assert make_events(0, site=site).to_rows().texts("site").values == ["site0"]


def test_a_missing_string_where_one_must_be_is_our_mistake(make_events):
    with pytest.raises(AssertionError, match="null in site"):
        make_events(0, site=Interned(codes=np.full(6, -1, dtype=np.int32), values=[])).to_rows()


def test_interning_strings_one_by_one():
    interned = Interned.of(["b", None, "a", "b"])
    assert (interned.codes.tolist(), interned.values) == ([0, -1, 1, 0], ["b", "a"])


def test_the_arrays_may_be_reused_at_once(make_events):
    columns = make_events(0, sketch=np.ones((6, 16), dtype=np.float32))
    table = columns.to_rows()
    columns.max[:] = -7
    columns.sketch[:] = -7
    columns.site.codes[:] = 0
    assert table["max"].to_list() == [2, 3, 4, 5, 6, 7]
    assert table["sketch"].to_list()[0] == np.ones(16, dtype="<f4").tobytes()
    assert table["site"].to_list()[1] == "blocks.1.mlp"


def test_rows_of_a_wider_array_can_be_handed_over_as_they_lie_in_memory(make_events):
    wide = np.arange(6 * 27, dtype=np.float64).reshape(6, 27)
    table = make_events(0, min=wide[:, 3], sketch=wide[:, 11:].astype(np.float32)).to_rows()
    assert table["min"].to_list() == wide[:, 3].tolist()
    assert np.frombuffer(table["sketch"].to_list()[5], "<f4").tolist() == wide[5, 11:].tolist()


def test_masked_rows_are_null_and_nan_is_not(make_events):
    errors = np.ma.array([1.0, np.nan, np.inf, 0.0, 2.0, 3.0], mask=[True, False, False, False, False, True])
    table = make_events(0, introduced_ulps=errors).to_rows()
    assert [str(value) for value in table["introduced_ulps"].to_list()] == [
        "None",
        "nan",
        "inf",
        "0.0",
        "2.0",
        "None",
    ]


def test_masked_sketches_are_null(make_events):
    mask = np.zeros((6, 16), dtype=bool)
    mask[[0, 4]] = True
    table = make_events(0, sketch=np.ma.array(np.ones((6, 16), dtype=np.float32), mask=mask)).to_rows()
    assert [value is None for value in table["sketch"].to_list()] == [True, False, False, False, True, False]


def test_no_rows_are_fine(make_events):
    assert make_events(0, num_rows=0).to_rows().num_rows == 0
