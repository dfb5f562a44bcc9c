"""Formats for an error, and errors for a budget."""

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.site_choices import FormatChoice, choose_formats, format_choices, site_ops
from tests.experiments.measured_steps import effect, measured


def choices(*errors: float) -> list[tuple[FormatChoice, FormatChoice]]:
    """Return units of 100 numbers that may be bf16, with an error each, or fp32, with none."""
    narrow = [FormatChoice(fmt="bf16", squared_change=error**2, num_bits=1600.0) for error in errors]
    return [(each, FormatChoice(fmt="fp32", squared_change=0.0, num_bits=3200.0)) for each in narrow]


def formats_for(target: Target, *errors: float, loss: float = 1.0) -> list[str]:
    return [choice.fmt for choice in choose_formats(choices(*errors), target=target, loss=loss)]


def test_everything_is_narrow_where_the_error_allows() -> None:
    assert formats_for(Target(loss=0.01), 0.001, 0.002, 0.003) == ["bf16"] * 3


def test_the_largest_error_is_widened_first() -> None:
    assert formats_for(Target(loss=0.01), 0.001, 0.05, 0.002) == ["bf16", "fp32", "bf16"]


def test_the_target_is_a_share_of_the_loss() -> None:
    assert formats_for(Target(loss=0.01), 0.05, loss=10.0) == ["bf16"]


def test_a_budget_narrows_what_hurts_least() -> None:
    assert formats_for(Target(bits=24.0), 0.3, 0.1, 0.2, 0.4) == ["fp32", "bf16", "bf16", "fp32"]


def test_what_takes_no_room_is_narrow_under_a_budget() -> None:
    free = [
        FormatChoice(fmt="bf16", squared_change=0.0, num_bits=0.0),
        FormatChoice(fmt="fp32", squared_change=0.0, num_bits=0.0),
    ]
    picked = choose_formats([*choices(0.1), free], target=Target(bits=32.0), loss=1.0)
    assert [choice.fmt for choice in picked] == ["fp32", "bf16"]


def test_a_budget_in_bytes_is_the_same_budget() -> None:
    assert formats_for(Target(memory_bytes=1200), 0.3, 0.1, 0.2, 0.4) == ["fp32", "bf16", "bf16", "fp32"]


def test_a_budget_below_the_narrowest_formats_is_an_error_that_says_what_they_take() -> None:
    with pytest.raises(PlanError, match="they take 400 bytes; in fp32 800"):
        formats_for(Target(bits=8.0), 0.1, 0.2)


def test_an_op_in_many_formats_goes_through_them_one_by_one() -> None:
    one = [
        FormatChoice(fmt="e4m3", squared_change=1.0, num_bits=800.0),
        FormatChoice(fmt="bf16", squared_change=1e-6, num_bits=1600.0),
        FormatChoice(fmt="fp32", squared_change=0.0, num_bits=3200.0),
    ]
    assert [each.fmt for each in choose_formats([one], target=Target(loss=0.01), loss=1.0)] == ["bf16"]
    assert [each.fmt for each in choose_formats([one], target=Target(loss=1e-5), loss=1.0)] == ["fp32"]
    assert [each.fmt for each in choose_formats([one], target=Target(bits=16.0), loss=1.0)] == ["bf16"]


def test_of_two_formats_of_one_width_the_better_is_a_choice() -> None:
    both = measured(effect("fc", "linear", loss_change=1e-3), effect("fc", "linear", fmt="bf16", loss_change=1e-2))
    (unit,) = site_ops(both)
    assert [choice.fmt for choice in format_choices(unit, ["bf16", "fp16"])] == ["fp16", "fp32"]
