import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundoff.errors import RunFolderError
from roundoff.runs.files import plain_json
from roundoff.runs.files.plain_json import from_json, read_json_object, to_json

texts = st.text().filter(lambda text: text not in ("nan", "inf", "-inf"))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])  # which a busy machine is
@given(values)
def test_everything_comes_back_as_it_was(value):
    assert from_json(to_json(value)) == value


def test_nan_comes_back_as_nan():
    assert math.isnan(from_json(to_json({"loss": math.nan}))["loss"])


def test_writes_only_what_the_json_standard_allows():
    def refuse(constant):
        raise AssertionError(constant)

    text = to_json({"a": [math.nan, math.inf, -math.inf]})
    assert json.loads(text, parse_constant=refuse) == {"a": ["nan", "inf", "-inf"]}


def test_takes_numbers_of_numpy():
    assert to_json({"a": np.float32(0.5), "b": np.int64(3), "c": np.float32("inf")}) == '{"a": 0.5, "b": 3, "c": "inf"}'


def test_texts_that_are_not_unicode_survive():
    assert from_json(to_json("caf\udce9")) == "caf\udce9"


def test_refuses_a_file_beyond_the_bound(tmp_path: Path):
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(plain_json.MAX_JSON_BYTES + 1)
    with pytest.raises(RunFolderError, match=r"run\.json' cannot be read\.\n  why: it has 67108865 bytes"):
        read_json_object(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe\xfd", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1]", "it does not hold a JSON object"),
    ],
)
def test_says_what_is_wrong_with_a_file(tmp_path: Path, content: bytes, why: str):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=rf"run\.json' cannot be read\.\n  why: {why}"):
        read_json_object(path)
