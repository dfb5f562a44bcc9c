import pickle
from pathlib import Path

import pytest

from roundoff.errors import TrainError
from roundoff.train import TrainConfig


def test_the_linear_rule_scales_the_rate_with_the_batch():
    assert TrainConfig(lr=0.1, batch_size=512).peak_lr == 0.2
    assert TrainConfig(lr=0.1, batch_size=64).peak_lr == 0.025
    assert TrainConfig(lr=0.1, batch_size=64, lr_scaling=False).peak_lr == 0.1


def test_each_optimizer_has_its_usual_rate():
    assert TrainConfig(batch_size=256).peak_lr == 0.1
    assert TrainConfig(batch_size=256, optimizer="adamw").peak_lr == 1e-3
    text = TrainConfig(batch_size=256, optimizer="adamw", data="text:a.txt", model="gpt-small")
    assert text.peak_lr == 5e-3


def test_a_batch_that_cannot_be_divided_is_refused_with_one_that_can():
    with pytest.raises(TrainError) as caught:
        TrainConfig(batch_size=65, procs=2, accumulate=2)
    assert str(caught.value) == (
        "A batch of 65 cannot be divided by 4.\n"
        "  why: it is split into 2 ranks x 2 microbatches.\n"
        "  fix: for example: --batch-size 64"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data": "cifar"},
            "Invalid --data 'cifar'.\n  why: known are digits, fashion-mnist, idx:PATH, folder:PATH, text:PATH.",
        ),
        ({"data": "folder:"}, "Invalid --data 'folder:'."),
        ({"data": "digits:here"}, "Invalid --data 'digits:here'."),
        (
            {"model": "vgg"},
            "Invalid --model 'vgg'.\n  why: known are resnet-small, resnet20, resnet18, resnet50, gpt-small,",
        ),
        ({"schedule": "poly"}, "Invalid --schedule 'poly'.\n  why: known are step, cosine, linear, constant."),
        ({"epochs": 0}, "Invalid --epochs '0'.\n  why: it must be at least 1."),
        ({"lr": float("nan")}, "Invalid --lr 'nan'.\n  why: it must be at least 0."),
        ({"ema": 1.0}, "Invalid --ema '1.0'.\n  why: it must be at least 0 and below 1."),
        ({"clip": 0.0}, "Invalid --clip '0.0'.\n  why: it must be above 0."),
        ({"loss_scale": -1.0}, "Invalid --loss-scale '-1.0'.\n  why: allowed: 0 (dynamic), a positive number"),
        (
            {"augment": "none"},
            "Invalid --augment 'none'.\n  why: it must be a tuple of names, such as ('none',), or None.",
        ),
        ({"augment": ("rotate",)}, "Invalid --augment 'rotate'.\n  why: known are crop, flip, jitter, none."),
        ({"model": "gpt-small"}, "The model 'gpt-small' cannot be trained on 'digits'.\n  why: it takes text."),
        ({"data": "text:a.txt"}, "The model 'resnet-small' cannot be trained on 'text:a.txt'.\n  why: it takes ima"),
        ({"rank": 1}, "Rank 1 does not exist among 1."),
        ({"world_size": 2}, "The 2 ranks on several machines have no address to meet at.\n  fix: pass the same"),
    ],
)
def test_what_cannot_be_is_said_as_the_user_wrote_it(settings: dict[str, object], message: str):
    with pytest.raises(TrainError) as caught:
        TrainConfig(**settings)
    assert str(caught.value).startswith(message)


def test_settings_that_change_the_numbers_are_named_and_others_are_not():
    before = TrainConfig(recipe="fp32", workers=0, name="a").to_object()
    now = TrainConfig(recipe="O2", workers=4, name="b", resume=Path("runs/a"), steps=3)
    assert now.changes_since(before) == ["recipe O2, was fp32"]


def test_a_config_survives_pickling():
    config = TrainConfig(augment=("crop",), runs=Path("elsewhere"))
    assert pickle.loads(pickle.dumps(config)) == config


def test_layers_stay_wide_by_their_role():
    config = TrainConfig(recipe="half", wide=("head",))
    assert config.command() == "roundoff train --recipe half --wide head"
    with pytest.raises(TrainError, match="tail"):
        TrainConfig(wide=("tail",))
