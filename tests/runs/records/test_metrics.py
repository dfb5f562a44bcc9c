import json
import math

import pytest

from roundoff.runs import Metrics


def test_metrics_come_back_with_nan_and_infinity():
    text = Metrics(step=3, loss=math.nan, grad_norm=math.inf, lr=0.1, skipped=True, optimizer="Adam").to_text()
    assert json.loads(text) == {
        "step": 3,
        "loss": "nan",
        "eval_loss": None,
        "lr": 0.1,
        "loss_scale": None,
        "skipped": True,
        "grad_norm": "inf",
        "update_norm": None,
        "seconds": None,
        "optimizer": "Adam",
    }
    back = Metrics.from_object({**json.loads(text), "loss": math.nan, "grad_norm": math.inf})
    assert math.isnan(back.loss)
    assert (back.step, back.grad_norm, back.skipped, back.optimizer) == (3, math.inf, True, "Adam")


def test_whole_numbers_become_floats():
    assert isinstance(Metrics.from_object({"step": 0, "loss": 2}).loss, float)


def test_fields_of_a_newer_version_are_left_out():
    assert Metrics.from_object({"step": 1, "perplexity": 3.0}) == Metrics(step=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"loss": 1.0}, "'step' is missing"),
        ({"step": "one"}, "'step' holds 'one'"),
        ({"step": True}, "'step' holds True"),
        ({"step": None}, "'step' holds None"),
        ({"step": 1, "loss": [1.0]}, r"'loss' holds \[1.0\]"),
        ({"step": 1, "skipped": 0}, "'skipped' holds 0"),
    ],
)
def test_a_field_that_holds_something_else_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        Metrics.from_object(value)
