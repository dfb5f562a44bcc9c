"""Measuring one step of a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.errors import FormatError, SensitivityError
from roundoff.formats import round_to
from roundoff.sensitivity import Sensitivity, measuring_sensitivity


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def train(model: nn.Module, num_steps: int, *, num_parts: int = 1, scaler: torch.amp.GradScaler | None = None) -> None:
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        for part in range(num_parts):
            loss = F.cross_entropy(model(x[part::num_parts]), y[part::num_parts]) / num_parts
            (loss if scaler is None else scaler.scale(loss)).backward()
        optimizer.step() if scaler is None else scaler.step(optimizer)


def measured(step: int = 0, **settings: object) -> Sensitivity:
    with measuring_sensitivity(step=step, formats=["bf16"]) as found:
        train(net(), step + 1, **settings)
    return found.sensitivity


def test_the_effect_of_a_result_is_its_error_times_its_gradient():
    model, x = net()[0], torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    with measuring_sensitivity(step=0, formats=["bf16"]) as found:
        y = model(x)
        y.square().sum().backward()
    effects = {e.part: e for e in found.sensitivity.of("bf16", site="<model>")}
    narrow = F.linear(*(round_to(each.detach(), "bf16") for each in (x, model.weight, model.bias)))
    error = (round_to(narrow, "bf16") - y).detach()
    wanted = float((2 * y.detach() * error).sum() + error.square().sum())
    assert found.sensitivity.loss_change("bf16", site="<model>") == pytest.approx(wanted, rel=0.05)
    assert effects["weight"].value.num_elements == model.weight.numel() + model.bias.numel()
    assert effects["result"].absmax == pytest.approx(float(y.detach().abs().max()))


def test_a_step_is_measured_once_it_has_come_and_no_other():
    steps = []
    with measuring_sensitivity(formats=["bf16"], on_done=lambda found: steps.append(found.step)) as found:
        train(net(), 5)
    assert steps == [2]
    assert found.num_steps == 5
    assert found.sensitivity.num_parameters == {"0": 40, "2": 27}


def test_microbatches_add_up_to_the_step_of_the_whole_batch():
    whole, parts = measured(), measured(num_parts=3)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.loss_change("bf16", site="2") == pytest.approx(whole.loss_change("bf16", site="2"), rel=1e-2)
    weights = [next(e for e in each.effects if e.part == "weight") for each in (whole, parts)]
    assert weights[0].value.num_elements == weights[1].value.num_elements


def test_the_scale_of_the_loss_does_not_matter():
    plain, scaled = measured(), measured(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert scaled.loss == pytest.approx(plain.loss, rel=1e-6)
    for one, other in zip(plain.of("bf16", site="0"), scaled.of("bf16", site="0"), strict=True):
        assert other.loss_change == pytest.approx(one.loss_change, rel=1e-3, abs=1e-9)
        assert other.gradient_absmax == pytest.approx(one.gradient_absmax)


def test_overflow_and_lost_gradients_are_found_where_they_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with measuring_sensitivity(step=0, formats=["fp16"]) as found:
        hidden = model[0](torch.ones(2, 4)) * 1e6
        (model[1](hidden).sum() * 1e-9).backward()
    by_key = {(e.key, e.part): e for e in found.sensitivity.effects}
    assert by_key["<loop>:mul", "result"].value.overflow > 0
    assert by_key["1:linear", "input"].value.overflow > 0
    assert by_key["0:linear", "result"].value.overflow == 0
    assert by_key["1:linear", "result"].gradient.underflow == 1


def test_a_checkpointed_step_is_measured_like_another():
    from torch.utils.checkpoint import checkpoint

    def run(*, reentrant: bool | None) -> Sensitivity:
        model, x = net(), torch.ones(3, 4, requires_grad=True)
        with measuring_sensitivity(step=0, formats=["bf16"]) as found:
            out = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
            out.square().sum().backward()
        return found.sensitivity

    plain = run(reentrant=None)
    for reentrant in (False, True):
        again = run(reentrant=reentrant)
        assert [(e.key, e.part) for e in again.effects if e.site != "<loop>"] == [
            (e.key, e.part) for e in plain.effects if e.site != "<loop>"
        ]
        for site in ("0", "2"):
            assert again.of("bf16", site=site)[-1].value == plain.of("bf16", site=site)[-1].value


def test_says_that_the_step_never_came():
    with measuring_sensitivity(step=7) as found:
        train(net(), 2)
    with pytest.raises(SensitivityError, match=r"Step 7 was not measured.\n  why: the loop took 2 steps."):
        _ = found.sensitivity


def test_a_format_that_does_not_exist_is_refused_at_once():
    with pytest.raises(FormatError), measuring_sensitivity(formats=["e9m9x"]):
        pass


@pytest.mark.parametrize("step", [-1, "1", 1.5, True, None, [], [0, -2], ["0"]])
def test_a_step_that_cannot_be_is_refused_at_once(step: Any):
    with pytest.raises(SensitivityError) as caught, measuring_sensitivity(step=step):
        pass
    assert str(caught.value) == (
        f"Invalid step={step!r}.\n"
        "  why: steps are integers and count from 0.\n"
        "  fix: use step=2, or several: step=[0, 2]."
    )


@pytest.mark.parametrize("formats", [[], (), "bf16", None])
def test_no_list_of_formats_is_refused_at_once(formats: Any):
    with pytest.raises(SensitivityError) as caught, measuring_sensitivity(formats=formats):
        pass
    assert str(caught.value) == (
        f'Invalid formats={formats!r}.\n  why: it is a list of at least one name.\n  fix: use formats=["fp16", "bf16"].'
    )


def test_the_callback_can_end_the_script():
    def stop(found: Sensitivity) -> None:
        raise SystemExit(0)

    with pytest.raises(SystemExit), measuring_sensitivity(step=0, formats=["bf16"], on_done=stop) as found:
        train(net(), 100)
    assert found.sensitivity.step == 0
