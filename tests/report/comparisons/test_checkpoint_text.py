from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.compare.checkpoints.checkpoint_comparison import CheckpointComparison, compare_checkpoints
from roundoff.report.comparisons.compared_checkpoints import (
    HEADER,
    ComparedCheckpoints,
    checkpoint_rows,
    checkpoint_sentence,
)


def state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"stem.weight": (8, 8), "stem.bias": (8,), "body.weight": (8, 8), "head.weight": (3, 8), "head.bias": (3,)}
    return {name: torch.randn(shape, generator=generator) ** 3 for name, shape in shapes.items()}


@pytest.fixture
def compared(tmp_path: Path):
    def compare(**changes: Tensor | None) -> CheckpointComparison:
        replaced = {name.replace("__", "."): value for name, value in changes.items()}
        candidate = {name: value for name, value in (state() | replaced).items() if value is not None}
        torch.save(state(), tmp_path / "a.pth")
        torch.save(candidate, tmp_path / "b.pth")
        with read_checkpoint(tmp_path / "a.pth") as first, read_checkpoint(tmp_path / "b.pth") as second:
            return compare_checkpoints(first, second)

    return compare


def test_says_that_all_is_equal(compared):
    assert ComparedCheckpoints(compared()).text() == (
        "All 5 tensors are equal. If they are two states of one training, nothing moved between them.\n"
        "  torch-zip against torch-zip"
    )


def test_says_how_far_rounding_moved_what_agrees(compared):
    text = checkpoint_sentence(compared(**{name.replace(".", "__"): t.bfloat16() for name, t in state().items()}))
    assert text.startswith("All 5 tensors agree: 5 after rounding to bfloat16, which moved them by 0.00")


def test_leads_with_what_was_not_loaded(compared):
    found = compared(head__weight=torch.zeros(3, 8), stem__weight=state()["stem.weight"] * 1.5)
    assert ComparedCheckpoints(found).text().splitlines() == [
        "head.weight was not loaded: every value is 0; of 5 pairs 1 not loaded, 1 different, 3 equal.",
        "  not loaded   head.weight  every value is 0",
        "  different    stem.weight  relative 0.5, max 19.8, cosine 1.0000",
        "  torch-zip against torch-zip",
    ]


def test_names_the_two_that_are_swapped(compared):
    found = compared(stem__weight=state()["body.weight"], body__weight=state()["stem.weight"])
    assert checkpoint_sentence(found) == "body.weight and stem.weight are swapped; of 5 pairs 2 swapped, 3 equal."


def test_names_the_one_that_is_transposed(compared):
    found = compared(stem__weight=state()["stem.weight"].T.contiguous())
    assert checkpoint_sentence(found) == (
        "stem.weight is transposed: equal with its axes as (1, 0); of 5 pairs 1 transposed, 4 equal."
    )


def test_lists_what_did_not_move_and_not_what_did(compared):
    moved = {name.replace(".", "__"): value * 1.01 for name, value in state().items() if name != "stem.bias"}
    assert ComparedCheckpoints(compared(**moved)).text().splitlines() == [
        "Of 5 parameters 4 moved, by 0.01 of their norm in the median, and 1 did not: stem.bias.",
        "  not updated  stem.bias  bit for bit as in the reference",
        "  torch-zip against torch-zip",
    ]


def test_says_what_has_no_counterpart_and_why(compared):
    assert ComparedCheckpoints(compared(head__weight=torch.ones(4, 8), head__bias=None)).text().splitlines() == [
        "All 3 tensors are equal, but 2 tensors of the reference and 1 tensor of the candidate have no",
        "  counterpart.",
        "  only in REF  head.weight (3, 8)  'head.weight' has the same name, but the shape (4, 8)",
        "  only in REF  head.bias (3,)  the other side has no such name, and no such shape is left; nearest …",
        "  only in CAND head.weight (4, 8)  'head.weight' has the same name, but the shape (3, 8)",
        "  torch-zip against torch-zip",
    ]


def test_a_row_for_every_tensor(compared):
    rows = checkpoint_rows(compared(head__bias=None))
    assert {len(row) for row in rows} == {len(HEADER)}
    assert {row[1] for row in rows} == set(state())


def test_a_page_shows_every_tensor_and_breaks_at_no_name(compared):
    html = ComparedCheckpoints(compared(**{"head__bias": None, "<b>": torch.ones(2)})).page()
    assert all(name in html for name in state())
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


def test_fits_on_a_screen(compared):
    found = compared(**{name.replace(".", "__"): -value for name, value in state().items()})
    assert max(map(len, ComparedCheckpoints(found).text().splitlines())) <= 100
