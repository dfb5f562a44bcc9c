"""Turning switches on: names, options, the environment."""

import json
from typing import Any

import pytest
import torch

from roundoff.errors import SwitchError
from roundoff.switches import switches_in_environment, switching


def test_no_switches_change_nothing():
    with switching({}):
        pass


def test_a_switch_that_does_not_exist_is_an_error():
    with pytest.raises(SwitchError) as caught, switching({"randomnes": "0"}):
        pass
    assert str(caught.value) == (
        "No switch 'randomnes'.\n"
        "  why: the switches are adaptive, randomness, substitute, widest.\n"
        "  fix: correct the name."
    )


def test_invalid_switches_are_an_error_before_the_block_is_entered():
    for switches in ({"randomness": "x"}, {"widest": "x"}, {"adaptive": "x"}, {"substitute": "x"}):
        with pytest.raises(SwitchError):
            switching(switches)


def test_a_number_means_its_text():
    with switching({"randomness": 0}):
        drawn = torch.rand(8)
    with switching({"randomness": "0"}):
        assert torch.equal(drawn, torch.rand(8))


@pytest.mark.parametrize(
    ("switches", "why"),
    [
        ("randomness=0", "it is not a mapping from switches to values"),
        (None, "it is not a mapping from switches to values"),
        ({"randomness": None}, "'randomness': None; names are strings, values strings or numbers"),
        ({"randomness": True}, "'randomness': True; names are strings, values strings or numbers"),
        ({0: "randomness"}, "0: 'randomness'; names are strings, values strings or numbers"),
    ],
)
def test_what_is_no_mapping_of_texts_is_an_error(switches: Any, why: str):
    with pytest.raises(SwitchError) as caught:
        switching(switches)
    assert str(caught.value) == (
        f'Invalid switches {switches!r}.\n  why: {why}.\n  fix: write them like {{"randomness": "0"}}.'
    )


def test_an_option_of_a_switch_that_is_not_on_is_an_error():
    with pytest.raises(SwitchError, match="of 'substitute', which is not on"), switching({"substitute.ops": "head"}):
        pass


def test_the_environment_holds_the_same_mapping_as_json(monkeypatch):
    assert switches_in_environment() == {}
    monkeypatch.setenv("ROUNDOFF_SWITCHES", json.dumps({"randomness": "3", "substitute": "fp64"}))
    assert switches_in_environment() == {"randomness": "3", "substitute": "fp64"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("randomness=0", "it is not JSON"),
        ('["randomness"]', "it is not an object with string values"),
        ('{"randomness": 0}', "it is not an object with string values"),
        ('{"random": "0"}', "In the environment variable ROUNDOFF_SWITCHES: No switch 'random'."),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(monkeypatch, text: str, why: str):
    monkeypatch.setenv("ROUNDOFF_SWITCHES", text)
    with pytest.raises(SwitchError, match="ROUNDOFF_SWITCHES") as caught:
        switches_in_environment()
    assert why in str(caught.value)
