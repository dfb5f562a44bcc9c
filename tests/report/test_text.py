"""Findings as text, written out."""

from __future__ import annotations

from roundoff.report import to_text
from roundoff.runs import Finding, Severity


def test_says_plainly_when_nothing_was_found() -> None:
    assert to_text([]) == "Nothing found."


def test_lays_a_finding_out_with_its_place_first_and_its_source_at_the_right_edge() -> None:
    finding = Finding(
        rule="overflow",
        severity=Severity.ERROR,
        confidence=0.99,
        step=12,
        phase="forward",
        site="blocks.3.attn",
        op="aten.bmm#0",
        source="model.py:41",
        title="fp16 bmm overflowed",
        why="its inputs reach 1.7e3; the product 2.9e6 is beyond fp16's largest number 65504; in fp64 it is finite",
        fix="scale q by 1/sqrt(d) before the matmul, or keep blocks.3.attn in fp32",
    )
    assert to_text([finding]) == (
        "overflow   blocks.3.attn / aten.bmm#0   step 12, forward                                 model.py:41\n"
        "  fp16 bmm overflowed: its inputs reach 1.7e3; the product 2.9e6 is beyond fp16's largest number\n"
        "  65504; in fp64 it is finite.\n"
        "  fix    scale q by 1/sqrt(d) before the matmul, or keep blocks.3.attn in fp32."
    )
