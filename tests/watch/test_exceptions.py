import pytest
import torch
from torch import nn

from roundoff.watch.detector import exception_detail, raising_module


def test_the_traceback_begins_with_the_innermost_frame():
    with pytest.raises(RuntimeError) as raised:
        nn.Linear(3, 2)(torch.zeros(2, 5))
    lines = exception_detail(raised.value).traceback
    assert lines[0].endswith(" in forward")
    assert "test_exceptions.py" in lines[-1]


def test_the_innermost_module_is_found():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(3, 2))
    with pytest.raises(RuntimeError) as raised:
        model(torch.zeros(2, 5))
    assert raising_module(raised.value) is model[1]


def test_an_exception_of_the_loop_belongs_to_no_module():
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert raising_module(raised.value) is None


def test_what_led_to_it_is_kept_the_nearest_first():
    def fail() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError:
            raise RuntimeError("third")  # noqa: B904  # as careless code does

    with pytest.raises(RuntimeError) as raised:
        fail()
    assert exception_detail(raised.value).causes == ("ValueError: second", "KeyError: 'first'")


def test_a_long_message_keeps_its_beginning_and_its_end():
    message = exception_detail(ValueError("a" * 20000 + "the end")).message
    assert message.startswith("aaa")
    assert message.endswith("the end")
    assert len(message) < 9000
