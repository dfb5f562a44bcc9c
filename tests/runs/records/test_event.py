import math

import numpy as np
import pytest

from roundoff.runs import Event, EventKey, Run, RunInfo, RunWriter, shape_from_text, shape_to_text
from roundoff.runs.files.schema import EVENTS


@pytest.fixture
def event(tmp_path, make_events) -> Event:
    columns = make_events(
        4,
        num_rows=1,
        num_nan=np.array([1]),
        num_posinf=np.array([2]),
        num_neginf=np.array([3]),
        min=np.array([-9.0]),
        hash=np.array([2**64 - 1], dtype=np.uint64),
        sketch=np.arange(16, dtype=np.float32)[None],
        histogram=np.arange(64, dtype=np.uint16)[None],
        introduced_ulps=np.array([1.5]),
    )
    with RunWriter.create(tmp_path / "a", RunInfo(), rank=2, strict=True) as writer:
        writer.write_events(columns)
    RunWriter.create(tmp_path / "a", RunInfo())
    (found,) = Run.open(tmp_path / "a").iter_events()
    return found


def test_a_row_comes_back_as_an_event(event: Event):
    assert event == Event(
        step=4,
        rank=2,
        microbatch=0,
        phase="forward",
        site="blocks.0.mlp",
        op="aten.addmm",
        nth=0,
        output="output0",
        order=0,
        parameter=None,
        source=None,
        dtype="float32",
        shape=(8, 4),
        device="cpu",
        num_elements=32,
        min=-9.0,
        max=2.0,
        mean=0.0,
        sum_abs=10.0,
        l2=7.0,
        num_nan=1,
        num_posinf=2,
        num_neginf=3,
        num_zero=0,
        num_subnormal=0,
        hash=2**64 - 1,
        sketch_bytes=np.arange(16, dtype="<f4").tobytes(),
        histogram_bytes=np.arange(64, dtype="<u2").tobytes(),
        introduced_ulps=1.5,
        introduced_rms_ulps=None,
    )


def test_what_follows_from_the_numbers(event: Event):
    assert event.op_name == "aten.addmm#0"
    assert event.key == EventKey(4, 0, 2, "forward", "blocks.0.mlp", "aten.addmm", 0, "output0")
    assert (event.num_inf, event.num_nonfinite) == (5, 6)
    assert event.absmax == 9.0
    assert event.sketch.tolist() == list(range(16))
    assert event.histogram.tolist() == list(range(64))


def test_an_event_has_the_columns_of_the_table_and_its_rank():
    names = {name.removesuffix("_bytes") for name in Event.__dataclass_fields__}
    assert names == {*EVENTS.names, "rank"}


def test_as_json_the_hash_is_exact_for_every_parser(event: Event):
    value = event.to_object()
    assert set(value) == {*EVENTS.names, "rank"}
    assert value["hash"] == "ffffffffffffffff"
    assert (value["shape"], value["sketch"][:3], value["histogram"][:3]) == ((8, 4), [0, 1, 2], [0, 1, 2])


def test_without_a_finite_element_there_is_no_largest_one(tmp_path, make_events):
    with RunWriter.create(tmp_path / "a", RunInfo(), strict=True) as writer:
        nothing = np.array([math.nan])
        writer.write_events(make_events(0, num_rows=1, min=nothing, max=nothing, mean=nothing))
    (event,) = Run.open(tmp_path / "a").iter_events()
    assert math.isnan(event.absmax)
    assert (event.sketch, event.histogram) == (None, None)


@pytest.mark.parametrize(("shape", "text"), [((), ""), ((0,), "0"), ((8, 128, 256), "8x128x256")])
def test_shapes_come_back(shape, text):
    assert shape_to_text(shape) == text
    assert shape_from_text(text) == shape
