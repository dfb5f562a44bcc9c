"""Real trainings of which one thing differs: that thing is named first, and nothing is said of the same run twice."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.compare.settings.setting_comparison import differing_settings
from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind
from roundoff.record import recording
from roundoff.runs import Run
from tests.compare.watched_trainings import Training, Transformer, cross_entropy, mlp, numbers

TRANSFORMER = Training()
MLP = Training(model=mlp, data=numbers)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("references")
    return {"transformer": TRANSFORMER.watched(folder / "transformer"), "mlp": MLP.watched(folder / "mlp")}


def normal() -> nn.Module:
    model = mlp()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return model


def squared(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, F.one_hot(target, 4).float())


def backwards(size: int) -> Tensor:
    return torch.arange(size).flip(0)


def others(size: int) -> Tensor:
    return torch.arange(size) % 20 + 3


def scaled() -> tuple[Tensor, Tensor]:
    x, y = numbers()
    return 10 * x + 5, y


REPORTED = {
    "eps": (
        {"model": partial(Transformer, eps=1e-3)},
        ["eps of LayerNorm (blocks.0.norm, blocks.1.norm): 1e-05 against 0.001"],
    ),
    "weight decay": ({"settings": {"lr": 1e-3, "weight_decay": 0.1}}, ["weight_decay of AdamW: 0.01 against 0.1"]),
    "beta2": ({"settings": {"lr": 1e-3, "betas": (0.9, 0.95)}}, ["beta2 of AdamW: 0.999 against 0.95"]),
    "learning rate": ({"settings": {"lr": 3e-3}}, ["lr of AdamW: 0.001 against 0.003"]),
    "dropout": (
        {"model": partial(Transformer, p=0.2)},
        ["p of Dropout (blocks.0.dropout, blocks.1.dropout): 0.1 against 0.2"],
    ),
    "gelu": (
        {"model": partial(Transformer, gelu="tanh")},
        ["approximate of GELU (blocks.0.mlp.1, blocks.1.mlp.1): none against tanh"],
    ),
    "reduction": ({"loss": partial(cross_entropy, reduction="sum")}, ["reduction of cross_entropy: mean against sum"]),
    "smoothing": (
        {"loss": partial(cross_entropy, label_smoothing=0.1)},
        ["label_smoothing of cross_entropy: 0 against 0.1"],
    ),
    "order": (
        {"order": backwards},
        ["batches from step 0 on: one order against the same samples over 4 steps, in another order"],
    ),
    "batch": (
        {"order": others},
        ["batches from step 0 on: one batch against other samples: 20 of 32 in common over 4 steps"],
    ),
    "batch size": ({"batch_size": 4}, ["batch size: 8 against 4"]),
    "optimizer": (
        {"optimizer": torch.optim.SGD},
        ["optimizer: AdamW against SGD", "weight_decay of AdamW: 0.01 against 0"],
    ),
    "schedule": ({"decay_after": 2}, ["learning rate from step 2 on: [0.001] against [0.0001]"]),
    "seed": (
        {"seed": 1},
        [
            "start values (tokens.weight, blocks.0.attention.in_proj_weight, "
            "blocks.0.attention.out_proj.weight and 12 more): one draw against another draw of the same kind, "
            "in 15 of 23 parameters",
            "seed: 0 against 1",
        ],
    ),
}


@pytest.mark.parametrize(("change", "texts"), REPORTED.values(), ids=REPORTED.keys())
def test_the_one_thing_that_differs_is_all_that_is_reported(
    references: dict[str, Run], tmp_path: Path, change: dict[str, Any], texts: list[str]
) -> None:
    candidate = dataclasses.replace(TRANSFORMER, **change).watched(tmp_path / "run")
    assert [difference.text for difference in differing_settings(references["transformer"], candidate)] == texts


def first_of(reference: Run, candidate: Run) -> SettingDifference:
    return differing_settings(reference, candidate)[0]


def test_nothing_is_reported_of_the_same_training_twice(references: dict[str, Run], tmp_path: Path) -> None:
    assert differing_settings(references["transformer"], TRANSFORMER.watched(tmp_path / "again")) == []
    assert differing_settings(references["mlp"], MLP.watched(tmp_path / "and again")) == []


def test_a_run_does_not_differ_from_itself(references: dict[str, Run]) -> None:
    assert differing_settings(references["mlp"], references["mlp"]) == []


def test_another_initialiser_is_named(references: dict[str, Run], tmp_path: Path) -> None:
    (difference,) = differing_settings(
        references["mlp"], dataclasses.replace(MLP, model=normal).watched(tmp_path / "run")
    )
    assert difference.kind is SettingKind.START_VALUE
    assert difference.text == "start values (0.weight, 2.weight, 4.weight): kaiming uniform against normal 0.02"


def test_another_loss_leads(references: dict[str, Run], tmp_path: Path) -> None:
    difference = first_of(references["mlp"], dataclasses.replace(MLP, loss=squared).watched(tmp_path / "run"))
    assert (difference.kind, difference.text) == (
        SettingKind.LOSS, "loss function: cross_entropy against mse_loss",
    )  # fmt: skip


def test_inputs_on_another_scale_lead(references: dict[str, Run], tmp_path: Path) -> None:
    difference = first_of(references["mlp"], dataclasses.replace(MLP, data=scaled).watched(tmp_path / "run"))
    assert difference.what == "values of <model>[0]"
    assert difference.kind is SettingKind.DATA


def test_calls_in_another_order_and_clipping_are_reported(references: dict[str, Run], tmp_path: Path) -> None:
    late = dataclasses.replace(MLP, late_zero_grad=True).watched(tmp_path / "late")
    clipped = dataclasses.replace(MLP, clip=1.0).watched(tmp_path / "clipped")
    harder = dataclasses.replace(MLP, clip=0.1).watched(tmp_path / "harder")
    assert first_of(references["mlp"], late).candidate == "forward, zero_grad, backward, step, scheduler"
    norm, order = differing_settings(references["mlp"], clipped)
    assert norm.text == "max_norm of clipping: none against 1"
    assert order.kind is SettingKind.LOOP
    assert str(order.candidate).startswith("zero_grad, forward, backward, clip, step")
    assert [each.text for each in differing_settings(clipped, harder)] == ["max_norm of clipping: 1 against 0.1"]


def test_more_threads_are_reported_but_hardly_suspected(references: dict[str, Run], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        candidate = MLP.watched(tmp_path / "run")
    finally:
        torch.set_num_threads(threads)
    (difference,) = differing_settings(references["mlp"], candidate)
    assert (difference.what, difference.kind) == ("torch.num_threads", SettingKind.ENVIRONMENT)
    assert difference.suspicion < 0.3


def test_layers_of_another_size_are_reported_by_their_modules(references: dict[str, Run], tmp_path: Path) -> None:
    candidate = dataclasses.replace(MLP, model=partial(mlp, width=16)).watched(tmp_path / "run")
    texts = [difference.text for difference in differing_settings(references["mlp"], candidate)]
    assert "out_features of Linear (0, 2): 32 against 16" in texts
    assert "shape of parameter (2.weight): [32, 32] against [16, 16]" in texts


def recorded(folder: Path, *, seed: int = 0, shift: float = 0.0, lr: float = 0.1) -> Run:
    torch.manual_seed(seed)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = numbers()
    with recording(model, to=folder):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x + shift), y).backward()
            optimizer.step()
    return Run.open(folder)


def test_recordings_are_compared_as_far_as_they_tell(tmp_path: Path) -> None:
    reference = recorded(tmp_path / "reference")
    assert differing_settings(reference, recorded(tmp_path / "again")) == []
    texts = [each.text for each in differing_settings(reference, recorded(tmp_path / "seed", seed=1))]
    assert texts[0].endswith("one draw against another draw of the same kind, in 6 of 6 parameters")
    assert texts[1:] == ["seed: 0 against 1"]
    (difference,) = differing_settings(reference, recorded(tmp_path / "shift", shift=1.0))
    assert difference.text == "batches from step 0 on: one batch against another one"
    (difference,) = differing_settings(reference, recorded(tmp_path / "lr", lr=0.2))
    assert difference.text == "lr of SGD: 0.1 against 0.2"
