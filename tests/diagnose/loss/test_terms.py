"""Terms of a loss that no gradient passes, by what a replay saw of them; and constants, which are fine."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.loss.terms import unreachable_terms
from roundoff.runs import LossTerm, LossTermsProbe, Run
from tests.diagnose.findings import only
from tests.run_folders import write_run


def seen(folder: Path, *terms: LossTerm | None) -> Run:
    probes = [
        LossTermsProbe(step=step, loss=2.0, num_terms=1, terms=() if term is None else (term,))
        for step, term in enumerate(terms)
    ]
    return write_run(folder, *probes)


def term(value: float, kind: str = "computed") -> LossTerm:
    return LossTerm(value=value, kind=kind, source="train.py:7")


def test_a_term_without_a_gradient_is_named_with_its_line(tmp_path: Path) -> None:
    finding = only(unreachable_terms, seen(tmp_path / "run", term(0.5), term(0.4)))
    assert (finding.rule, finding.source, finding.step) == ("loss-term-unreachable", "train.py:7", 0)
    assert "a term of 0.5 is added to a loss of 2" in finding.why


def test_a_term_that_is_seen_once_is_not_reported(tmp_path: Path) -> None:
    assert unreachable_terms(seen(tmp_path / "run", term(0.5), None)) == []


def test_a_constant_is_fine_and_a_number_that_changes_is_not(tmp_path: Path) -> None:
    assert unreachable_terms(seen(tmp_path / "same", term(0.9, "number"), term(0.9, "number"))) == []
    assert unreachable_terms(seen(tmp_path / "outside", term(0.9, "outside"), term(0.9, "outside"))) == []
    assert "Python number" in only(unreachable_terms, seen(tmp_path / "run", term(1, "number"), term(2, "number"))).why
