import json

import pytest

from roundoff.runs import Call
from roundoff.runs.files.plain_json import from_json, object_from, object_to_text


def test_calls_come_back():
    call = Call(
        step=2, microbatch=1, call="clip", seconds=0.5, detail={"max_norm": float("inf"), "names": ["a", {"b": None}]}
    )
    assert json.loads(object_to_text(call))["detail"]["max_norm"] == "inf"
    assert object_from(Call, from_json(object_to_text(call))) == call


def test_a_detail_that_is_no_object_is_named():
    with pytest.raises(ValueError, match="'detail' holds 3"):
        object_from(Call, {"step": 0, "call": "step", "detail": 3})
