import json

import pytest

from roundoff.runs import Call, ClipDetail, EpochDetail, StepDetail, call_detail
from roundoff.runs.files.plain_json import from_json, object_to_text


def test_calls_come_back():
    call = Call(step=2, microbatch=1, call="clip", seconds=0.5, detail=ClipDetail(max_norm=float("inf")))
    assert json.loads(object_to_text(call))["detail"]["max_norm"] == "inf"
    assert Call.from_object(from_json(object_to_text(call))) == call


def test_a_call_of_a_kind_that_only_a_newer_version_knows_is_left_out():
    assert Call.from_object({"step": 0, "call": "prune"}) is None


def test_a_detail_with_a_misspelt_name_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="StepDetail has no field skiped"):
        call_detail("step", {"skiped": True})


def test_a_value_of_the_user_that_is_no_number_is_left_out():
    assert call_detail("epoch", {"set_epoch": "second", "num_batches": 3}) == EpochDetail(num_batches=3)


def test_flags_are_written_only_where_they_hold():
    text = object_to_text(Call(step=0, call="step", detail=StepDetail(optimizer="SGD", lr=(0.5,))))
    assert json.loads(text)["detail"] == {"optimizer": "SGD", "lr": [0.5]}


def test_a_detail_that_is_no_object_is_named():
    with pytest.raises(ValueError, match="'detail' holds 3"):
        Call.from_object({"step": 0, "call": "step", "detail": 3})
