"""Objects are found under the names that the running code knows them by."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace

import torch

from roundoff.watch.process.variables import name_from_referrers, named_objects, user_frames

GLOBAL: list[int] = []
HIDDEN = SimpleNamespace()


def name_of(value: object, frame: FrameType) -> str | None:
    return next((named.name for named in named_objects([frame]) if named.value is value), None)


def test_local_variables_attributes_and_entries_have_names() -> None:
    plain: list[int] = []
    thing = SimpleNamespace(history=[], log={"loss": []})
    frame = sys._getframe()
    assert name_of(plain, frame) == "plain"
    assert name_of(thing.history, frame) == "thing.history"
    assert name_of(thing.log["loss"], frame) == "thing.log['loss']"
    assert name_of(GLOBAL, frame) == "GLOBAL"
    assert name_of([], frame) is None


def test_what_no_frame_leads_to_is_named_after_its_owner() -> None:
    HIDDEN.inner = SimpleNamespace(values=[1, 2, 3])  # what importing has made is out of sight
    named = name_from_referrers(HIDDEN.inner.values)
    assert named is not None
    assert (named.name, named.anchor) == ("SimpleNamespace.values", "values")


def test_frames_of_torch_and_ours_are_left_out() -> None:
    seen: list[str] = []

    def look(module: object, args: object) -> None:
        seen.extend(frame.f_code.co_name for frame in user_frames(sys._getframe()))

    model = torch.nn.Linear(2, 2)
    model.register_forward_pre_hook(look)
    model(torch.ones(1, 2))
    assert seen[:2] == ["look", "test_frames_of_torch_and_ours_are_left_out"]


def test_a_copy_of_the_locals_that_the_code_uses_itself_stays_whole() -> None:
    value = object()
    mine = locals()
    list(named_objects([sys._getframe()]))
    assert mine["value"] is value
