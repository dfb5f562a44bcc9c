"""Where the precision of a step goes, as text and as a page."""

from __future__ import annotations

import math
from typing import Any

from roundoff.report.parts import to_text
from roundoff.report.precision_loss import sensitivity_page, sensitivity_parts
from roundoff.sensitivity import LossEffect, Rounded, Sensitivity


def rounded(**changes: float) -> Rounded:
    fine: dict[str, Any] = {"num_elements": 8, "overflow": 0.0, "underflow": 0.0, "subnormal": 0.0}
    return Rounded(**{**fine, "ulps": 0.2, "snr_db": 52.0, **changes})


def effect(site: str, op: str, part: float, *, value: Rounded | None = None) -> LossEffect:
    return LossEffect(
        site=site, op=op, part="result", fmt="e4m3", loss_change=2 * part, part_of_all=part, absmax=1.0,
        value=value or rounded(), gradient=rounded(underflow=0.25, snr_db=math.inf), gradient_absmax=1.0,
    )  # fmt: skip


def measured(*effects: LossEffect, **changes: Any) -> Sensitivity:
    settings: dict[str, Any] = {"narrow_losses": {"e4m3": 2.011}, **changes}
    return Sensitivity(step=2, loss=2.0, formats=("e4m3",), effects=effects, num_parameters={}, **settings)


def text_of(found: Sensitivity, fmt: str) -> str:
    return to_text(sensitivity_parts(found, fmt))


def test_the_verdict_comes_first_then_what_the_sites_add_up_to_then_the_sites():
    found = measured(effect("blocks.0.attn", "softmax", -0.002), effect("head", "linear", 0.012))
    assert text_of(found, "e4m3") == (
        "In e4m3 the loss of step 2 moves from 2 by +1.10e-02 (+0.55 %): 86 % of the error comes from head.\n"
        "  The sites add up to +1.000e-02; with every site in e4m3 the loss moves by +1.100e-02.\n"
        "\n"
        "site           share       loss      alone  overflow  lost    SNR  SNR grad  worst op\n"
        "head            86 %  +1.20e-02  +2.40e-02         -  25 %  52 dB     exact  linear\n"
        "blocks.0.attn   14 %  -2.00e-03  -4.00e-03         -  25 %  52 dB     exact  softmax"
    )


def test_overflow_is_reported_first():
    found = measured(effect("a", "matmul", 1e-9, value=rounded(overflow=0.5)), effect("head", "linear", 0.012))
    assert text_of(found, "e4m3").startswith(
        "In e4m3 a overflows: 50 % of a tensor of matmul is outside the format's range.\n"
    )


def test_where_the_narrow_step_is_unknown_sites_count_alone():
    text = text_of(measured(effect("head", "linear", 0.01), narrow_losses={}), "e4m3")
    assert "+2.00e-02  +2.00e-02" in text
    assert "each rounded alone; together they could not be computed." in text


def test_long_names_and_many_sites_stay_within_the_width():
    effects = [effect(f"{'encoder.layers.' * 4}{n}", "scaled_dot_product_attention", 0.01) for n in range(30)]
    text = text_of(measured(*effects), "e4m3")
    assert max(map(len, text.splitlines())) <= 100
    assert "and 10 more, 33 %" in text


def test_the_page_draws_a_bar_for_every_site_and_what_they_add_up_to():
    page = sensitivity_page(measured(effect("a<b", "softmax", -0.002), effect("head", "linear", 0.012)))
    assert page.count("<rect") == 4
    assert "a&lt;b: -2.000e-03, worst op softmax" in page
    assert "sum of all sites: +1.000e-02" in page
    assert "measured, all sites narrow: +1.100e-02" in page
    assert "86 % of the error comes from head" in page


def test_a_step_without_effects_says_so():
    found = Sensitivity(step=1, loss=0.0, formats=("e4m3",), effects=(), num_parameters={})
    assert text_of(found, "e4m3").startswith("In e4m3 step 1 loses no precision.")
    assert "step 1 loses no precision" in sensitivity_page(found)
