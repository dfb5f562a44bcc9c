import json

import pytest

from roundoff.runs import Call
from roundoff.runs.files.plain_json import from_json


def test_calls_come_back():
    call = Call(
        step=2, microbatch=1, call="clip", seconds=0.5, detail={"max_norm": float("inf"), "names": ["a", {"b": None}]}
    )
    assert json.loads(call.to_text())["detail"]["max_norm"] == "inf"
    assert Call.from_object(from_json(call.to_text())) == call


def test_a_detail_that_is_no_object_is_named():
    with pytest.raises(ValueError, match="'detail' holds 3"):
        Call.from_object({"step": 0, "call": "step", "detail": 3})
