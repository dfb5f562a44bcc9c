"""Saved steps, and what became of them, word for word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.cli.replay import rerun_text, saved_text
from roundoff.replay.saved.rerun import Rerun
from roundoff.replay.saved.saved_step import SavedBatchTensor, SavedStep
from roundoff.runs import Origin

RUN = Path("runs/train-3")
NAN = float("nan")
INPUT = SavedBatchTensor(name="outside0", dtype="float32", shape=(4, 2), least=-1.5, largest=2.0, num_nonfinite=0)
SAVED = SavedStep(
    step=12, rank=0, origin=None, models=("Net",), optimizers=("SGD",), num_numbers=6, batch=(INPUT,), needs_loss=None
)
AGAIN = Rerun(
    step=12, recipe=None, losses=(0.5,), saved_losses=(0.5,), place=None, is_same_place=False, was_bad=False,
    num_same=9, num_compared=9, first_difference=None, has_optimizer=True, loss_scale=None, has_own_recipe=False,
)  # fmt: skip


def test_a_saved_step_is_reported_with_a_builder_for_it() -> None:
    assert saved_text(SAVED, run=RUN).splitlines() == [
        "step 12 of runs/train-3",
        "  origin     no single op made the bad value; roundoff diagnose says more",
        "  model      Net, 6 numbers",
        "  optimizer  SGD",
        "  batch      outside0   float32   [4, 2]            -1.5 to 2",
        "  run again  roundoff replay runs/train-3 --builder FILE.py:build",
        "",
        "    def build():",
        "        model = Net(...)",
        "        optimizer = torch.optim.SGD(model.parameters())",
        "        return model, optimizer",
    ]


def test_several_models_no_optimizer_and_a_loss_change_the_builder() -> None:
    text = saved_text(
        replace(SAVED, models=("G", "D"), optimizers=(), needs_loss="the step uses the function own"), run=RUN
    )
    assert text.splitlines()[-5:] == [
        "        model = G(...)",
        "        model2 = D(...)",
        "        return [model, model2], lambda model, outside0: ...",
        "",
        "The loss is needed because the step uses the function own.",
    ]
    assert "  optimizer  none" in text


def test_the_optimizer_of_a_recipe_and_a_third_party_one_are_made_in_their_own_ways() -> None:
    assert "roundoff.apply_recipe(model, ..., ...)" in saved_text(
        replace(SAVED, optimizers=("RecipeOptimizer",)), run=RUN
    )
    assert "optimizer = Lion(model.parameters())" in saved_text(replace(SAVED, optimizers=("Lion",)), run=RUN)


def test_long_batches_are_cut_and_numbers_that_are_not_finite_are_counted() -> None:
    bad = replace(INPUT, least=None, largest=None, num_nonfinite=8)
    lines = saved_text(replace(SAVED, rank=1, batch=(bad,) * 14), run=RUN).splitlines()
    assert lines[0] == "step 12 of runs/train-3, rank 1"
    assert lines[4].endswith("no finite number, 8 not finite")
    assert lines[16] == "             2 more"


@pytest.mark.parametrize(
    ("is_finite", "end"),
    [(True, "; in fp64 it is finite"), (False, "; not finite in fp64 either"), (None, "model.py:41")],
)
def test_an_origin_is_reported_with_what_fp64_makes_of_it(is_finite: bool | None, end: str) -> None:
    origin = Origin(
        step=12, phase="forward", site="attn", op="aten.bmm#0", overload="aten::bmm", source="model.py:41",
        is_finite_in_fp64=is_finite,
    )  # fmt: skip
    line = saved_text(replace(SAVED, origin=origin), run=RUN).splitlines()[1]
    assert line.startswith("  origin     attn / aten.bmm#0   forward   model.py:41")
    assert line.endswith(end)


def test_a_step_that_came_out_the_same_is_reported_in_three_lines() -> None:
    assert rerun_text(AGAIN, run=RUN, builder="b.py:build").splitlines() == [
        "step 12: everything that matters is finite, as it was.",
        "  loss       0.5, as it was",
        "  same       all 9 tensors of the step, bit for bit",
    ]


def test_a_bad_loss_leads_to_a_wider_recipe_and_a_loss_of_nan_is_as_it_was() -> None:
    again = replace(AGAIN, losses=(NAN,), saved_losses=(NAN,), was_bad=True, num_same=8)
    assert rerun_text(again, run=RUN, builder="b.py:build").splitlines() == [
        "step 12: the loss is not finite again.",
        "  loss       nan, as it was",
        "  same       8 of 9 tensors, bit for bit",
        "  next       roundoff replay runs/train-3 --builder b.py:build --recipe fp32",
    ]


def test_another_recipe_is_reported_with_its_loss_and_scale() -> None:
    again = replace(AGAIN, recipe="O2", saved_losses=(NAN,), was_bad=True, loss_scale=1024.0, has_optimizer=False)
    assert rerun_text(again, run=RUN, builder="b.py:build").splitlines() == [
        "step 12 with recipe O2: everything that matters is finite.",
        "  loss       0.5; it was nan",
        "  scale      the loss was multiplied by 1024, the largest scale without overflow",
        "  note       without the optimizer step: the builder returns no optimizer",
    ]
