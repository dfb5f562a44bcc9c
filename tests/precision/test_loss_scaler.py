import math

import pytest
import torch

from roundoff.errors import LossScaleError, RecipeError
from roundoff.precision import LossScaler, ScaledStep, ScaleSettings, scale_settings

SCRIPT = [False, True, True, False, False, False, False, True, False, False, False, False, False, True]


def scales_after(settings: ScaleSettings, script: list[bool]) -> list[float]:
    scaler = LossScaler(settings)
    scales = []
    for overflow in script:
        scaler.update(overflow="w" if overflow else None)
        scales.append(scaler.scale)
    return scales


def test_the_torch_flavour_follows_torch_step_by_step():
    settings = ScaleSettings(kind="dynamic", initial=2.0**16, interval=3)
    reference = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    expected = []
    for overflow in SCRIPT:
        reference.scale(weight.sum()).backward()
        weight.grad.fill_(math.inf if overflow else 1.0)
        reference.step(optimizer)
        reference.update()
        optimizer.zero_grad()
        expected.append(reference.get_scale())
    assert scales_after(settings, SCRIPT) == expected


def test_the_flavours_are_set_as_in_the_systems_they_come_from():
    apex, torch_ = scale_settings("dynamic:apex"), scale_settings("dynamic:torch")
    mindspore, fp16_optimizer = scale_settings("dynamic:mindspore"), scale_settings("dynamic:fp16_optimizer")
    assert (apex.initial, apex.growth, apex.backoff, apex.interval, apex.largest) == (2**16, 2, 0.5, 2000, 2**24)
    assert (torch_.initial, torch_.growth, torch_.backoff, torch_.interval) == (2**16, 2, 0.5, 2000)
    assert (mindspore.initial, mindspore.growth, mindspore.interval, mindspore.smallest) == (2**24, 2, 2000, 1)
    assert mindspore.max_skips == 1000
    assert (fp16_optimizer.initial, fp16_optimizer.interval, fp16_optimizer.smallest) == (2**32, 1000, 1)


def test_apex_stops_growing_at_two_to_the_24():
    assert scales_after(scale_settings("dynamic:apex"), [False] * 20000)[-1] == 2.0**24


@pytest.mark.parametrize("flavour", ["mindspore", "fp16_optimizer"])
def test_never_falls_below_its_floor(flavour: str):
    assert scales_after(scale_settings(f"dynamic:{flavour}"), [True] * 60)[-1] == 1.0


def test_an_overflow_starts_the_count_of_clean_steps_anew():
    settings = ScaleSettings(kind="dynamic", initial=8.0, interval=3)
    assert scales_after(settings, [False, False, True, False, False, False]) == [8, 8, 4, 4, 4, 8]


def test_a_static_scale_stays():
    assert scales_after(scale_settings(128), [True, False, True]) == [128.0] * 3


def test_too_many_skips_in_a_row_name_the_gradient():
    scaler = LossScaler(ScaleSettings(kind="dynamic", initial=2.0, max_skips=3))
    scaler.update(overflow="head.weight")
    scaler.update(overflow="head.weight")
    with pytest.raises(LossScaleError) as caught:
        scaler.update(overflow="blocks.3.attn.weight")
    assert str(caught.value) == (
        "3 steps in a row overflowed; the loss scale fell to 0.25.\n"
        "  why: the gradient of 'blocks.3.attn.weight' is not finite at any scale: an earlier op makes NaN or "
        "infinity.\n"
        "  fix: find the op with `roundoff run`, or keep that layer wide: "
        'overrides={"blocks.3.attn": "fp32"}'
    )


def test_mindspores_limit_is_a_thousand():
    scaler = LossScaler(scale_settings("dynamic:mindspore"))
    for _ in range(999):
        scaler.update(overflow="w")
    with pytest.raises(LossScaleError):
        scaler.update(overflow="w")


def test_logs_a_line_per_step(tmp_path):
    scaler = LossScaler(scale_settings("dynamic"), log=tmp_path / "scale.csv")
    scaler.update(overflow=None, loss=0.5)
    scaler.update(overflow="head.weight", loss=0.25)
    assert (tmp_path / "scale.csv").read_text() == "0, 0.5, -, 65536\n1, 0.25, head.weight, 65536\n"


def test_logs_to_a_function():
    seen: list[ScaledStep] = []
    LossScaler(scale_settings(2), log=seen.append).update(overflow=None, loss=1.0)
    assert seen == [ScaledStep(step=0, loss=1.0, overflow=None, scale=2.0)]


def test_goes_on_from_its_state():
    first = LossScaler(ScaleSettings(kind="dynamic", initial=8.0, interval=5))
    for overflow in (True, False, False):
        first.update(overflow="w" if overflow else None)
    second = LossScaler(first.settings)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()


def test_a_static_scale_goes_on_counting_where_it_stopped():
    first, second = LossScaler(scale_settings(4)), LossScaler(scale_settings(8))
    for overflow in ("w", "w", None, None, None):
        first.update(overflow=overflow)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == {**first.state_dict(), "scale": 8.0}


def test_a_static_scaler_keeps_its_scale_when_it_reads_a_dynamic_state():
    first, second = LossScaler(scale_settings("dynamic")), LossScaler(scale_settings(4))
    second.load_state_dict(first.state_dict())
    assert second.scale == 4.0


@pytest.mark.parametrize(("short", "kind"), [(0, "dynamic"), ("0", "dynamic"), ("none", "none"), ("128", "static")])
def test_understands_short_forms(short, kind: str):
    assert scale_settings(short).kind == kind


def test_a_number_checks_and_static_does_not():
    assert scale_settings(1024).may_skip
    assert not scale_settings("static:1024").may_skip


@pytest.mark.parametrize("wrong", ["dynamik", "dynamic:nvidia", -1, "nan", "inf", "static:0", ""])
def test_other_forms_are_errors_that_list_the_allowed(wrong):
    with pytest.raises(RecipeError, match="dynamic:apex, dynamic:torch, dynamic:mindspore, dynamic:fp16_optimizer"):
        scale_settings(wrong)


def test_settings_that_cannot_be_are_errors():
    with pytest.raises(RecipeError, match=r"growth = 0 is invalid"):
        ScaleSettings(growth=0)
    with pytest.raises(RecipeError, match=r"allowed: none, static, dynamic"):
        ScaleSettings(kind="auto")
