"""Compared tensors in words: what a reader sees first, and what comes after it."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from roundoff import save_tensor
from roundoff.compare.tensors.tensor_comparison import TensorsComparison, compare_tensors
from roundoff.report.comparisons.compared_tensors import HEADER, ComparedTensors, printable, tensors_rows

Saved = dict[str, torch.Tensor]


def compared(folder: Path, reference: Saved, candidate: Saved) -> TensorsComparison:
    for side, tensors in (("a", reference), ("b", candidate)):
        for name, x in tensors.items():
            save_tensor(name, x, to=folder / side)
    return compare_tensors(folder / "a", folder / "b")


def ramp(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)


def test_the_first_that_differs_comes_first_with_its_numbers_and_its_channel(tmp_path: Path):
    x = ramp(4, 8)
    wrong = x.clone()
    wrong[:, 5] *= 1.5
    tensors = {"conv": x, "bn": x * (1 + 2**-22), "act": wrong, "out": 2 * wrong}
    found = compared(tmp_path, {"conv": x, "bn": x, "act": x, "out": 2 * x}, tensors)
    assert ComparedTensors(found).text() == (
        "00002-act is the first that differs: relative error 0.19, 1.6e6 ulp of fp32, largest 15 at [3, 5]\n"
        "  (30 against 45), nearly all of it in channel 5 of 8.\n"
        "  2 pairs before it agree: 1 of them bit for bit, the others within 2.02 ulp\n"
        "  1 later pair differs too: 00003-out"
    )


def test_equal_tensors_are_said_to_be_equal(tmp_path: Path):
    assert (
        ComparedTensors(compared(tmp_path, {"x": ramp(3)}, {"x": ramp(3)})).text()
        == "The only pair agrees bit for bit."
    )


def test_what_formats_explain_is_said_with_its_amount(tmp_path: Path):
    x = 1 + torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    found = compared(tmp_path, {"x": x, "y": x}, {"x": x, "y": x.bfloat16()})
    assert ComparedTensors(found).text() == (
        "All 2 pairs agree: 1 bit for bit, 1 within what their formats explain, at most 0.19 ulp (bf16) at\n  00001-y."
    )


def test_another_shape_is_reported_as_such(tmp_path: Path):
    found = compared(tmp_path, {"x": ramp(2, 3), "y": ramp(5)}, {"x": ramp(3, 2), "y": ramp(6)})
    assert ComparedTensors(found).text() == (
        "00000-x is the first that differs: its shape is 3x2 instead of 2x3.\n"
        "  it is the first of all\n"
        "  1 later pair differs too: 00001-y\n"
        "  00001-y: shape 6 instead of 5"
    )


def test_values_that_are_finite_in_one_only_are_pointed_at(tmp_path: Path):
    x, y = ramp(2, 3), ramp(2, 3)
    y[1, 0] = math.inf
    assert ComparedTensors(compared(tmp_path, {"x": x}, {"x": y})).text().splitlines()[:2] == [
        "00000-x is the first that differs: 1 value is not finite in only one of the two, or differently, the",
        "  first at [1, 0]: 4 against inf.",
    ]


def test_what_has_no_counterpart_and_what_order_decided_is_said(tmp_path: Path):
    reference = {"x": ramp(2), "conv": ramp(3, 3), "more": ramp(7)}
    assert ComparedTensors(compared(tmp_path, reference, {"x": ramp(2), "Conv2d": ramp(3, 3)})).text() == (
        "All 2 pairs agree bit for bit, but 1 tensor of the reference has no counterpart.\n"
        "  only in REF: 00002-more 7\n"
        "  1 pair rests on order and shape alone: --map FILE decides"
    )


def test_whole_numbers_are_counted(tmp_path: Path):
    found = compared(tmp_path, {"ids": torch.tensor([1, 2, 3])}, {"ids": torch.tensor([1, 5, 4])})
    assert ComparedTensors(found).text().splitlines()[0] == (
        "00000-ids is the first that differs: 2 values differ, largest 3 at [1] (2 against 5)."
    )


def test_every_tensor_is_in_the_rows(tmp_path: Path):
    reference = {"x": ramp(4, 4), "y": ramp(2), "only": ramp(9)}
    found = compared(tmp_path, reference, {"x": 2 * ramp(4, 4), "y": ramp(2), "other": ramp(11)})
    rows = [dict(zip(HEADER, row, strict=True)) for row in tensors_rows(found)]
    assert [(row["verdict"], row["reference"], row["candidate"]) for row in rows] == [
        ("different", "00000-x", "00000-x"),
        ("equal", "00001-y", "00001-y"),
        ("only reference", "00002-only", ""),
        ("only candidate", "", "00002-other"),
    ]
    assert (rows[0]["relative"], rows[0]["max abs"], rows[0]["at"]) == ("1", "16", "[3, 3]")
    assert tensors_rows(found, exact=True)[0][HEADER.index("ulp")] == "8388608.0"


def test_names_cannot_move_the_cursor():
    assert printable("a\x1b[2Jb\n") == "a?[2Jb?"
