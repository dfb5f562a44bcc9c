"""The value that measuring gives."""

from __future__ import annotations

import json
import math
from typing import Any

from roundoff.sensitivity import LossEffect, Rounded, Sensitivity

FINE = Rounded(num_elements=4, overflow=0.0, underflow=0.0, subnormal=0.0, ulps=0.2, snr_db=math.inf)


def effect(site: str, op: str, part: Any, change: float, **more: Any) -> LossEffect:
    return LossEffect(
        site=site, op=op, part=part, fmt="bf16", loss_change=change, value=FINE, gradient=None, absmax=1.0,
        gradient_absmax=None, **more,
    )  # fmt: skip


def sensitivity(*effects: LossEffect) -> Sensitivity:
    return Sensitivity(
        step=2, loss=1.5, formats=("bf16",), effects=effects, num_parameters={"a": 3}, narrow_losses={"bf16": 1.25}
    )


FOUND = sensitivity(
    effect("a", "linear", "input", 1.0, rounded_by=((),)),
    effect("a", "linear", "weight", 2.0),
    effect("a", "linear", "result", 4.0),
    effect("b", "gelu", "input", 8.0, rounded_by=(("a:linear",),)),
    effect("b", "gelu", "result", 16.0),
    effect("c.d", "add", "input", 32.0, rounded_by=(("a:linear",), ("b:gelu", "b:view"))),
)


def test_goes_to_json_and_back():
    assert Sensitivity.from_object(json.loads(json.dumps(FOUND.to_object()))) == FOUND


def test_an_input_counts_only_where_no_earlier_op_has_rounded_it():
    assert FOUND.loss_change("bf16", site="b") == 24
    assert FOUND.loss_change_with({"a": "bf16", "b": "bf16"}) == 1 + 2 + 4 + 16
    assert FOUND.loss_change_with({"a": "e4m3", "b": "bf16"}) == 24
    assert FOUND.loss_change("bf16") == 1 + 2 + 4 + 16


def test_of_several_tensors_in_one_input_each_must_have_been_rounded():
    assert FOUND.loss_change_with({"c.d": "bf16", "a": "bf16"}) == 7 + 32
    assert FOUND.loss_change_with({"c.d": "bf16", "a": "bf16", "b:view": "bf16"}) == 7


def test_single_ops_can_be_narrow():
    assert FOUND.loss_change_with({"b:gelu": "bf16"}) == 24
    assert FOUND.loss_change_with({"b:relu": "bf16"}) == 0


def test_a_site_is_within_itself_and_those_around_it():
    assert FOUND.within("c") == ("c.d",)
    assert FOUND.within("a") == ("a",)
