"""A run held against its reference: the op that introduces the difference, and the setting that explains it."""

from pathlib import Path

import pytest
import torch

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.diagnose import diagnose_run
from roundoff.diagnose.against import findings_against, reference_rule
from roundoff.diagnose.diagnosis import RULES
from roundoff.runs import Finding, Run, Severity
from roundoff.watch.watching import watching
from tests.compare.variants import Variant, transformer_training


def watched(folder: Path, variant: Variant) -> Run:
    train = transformer_training(variant)
    torch.manual_seed(variant.seed)
    with watching(to=folder):
        train()
    return Run.open(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return watched(tmp_path_factory.mktemp("against") / "reference", Variant())


def verdict(reference: Run, folder: Path, variant: Variant) -> Finding:
    found = findings_against(compare_runs(reference, watched(folder / "candidate", variant)))
    assert len(found) == 1
    return found[0]


NAMED = {
    "LayerNorm eps": (Variant(norm_eps=1e-3), "forward", "blocks.1.ln1", "eps of LayerNorm"),
    "weight decay": (Variant(weight_decay=0.1), "optimizer", "emb", "weight_decay of AdamW"),
    "Adam beta2": (Variant(beta2=0.99), "optimizer", "emb", "beta2 of AdamW"),
    "another batch": (Variant(data_seed=9), "forward", "<model>", "batches from step 0 on"),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_setting_that_explains_a_difference_is_named_with_it(reference: Run, tmp_path: Path, name: str):
    variant, phase, site, setting = NAMED[name]
    found = verdict(reference, tmp_path, variant)
    assert (found.rule, found.severity, found.step) == ("first-divergence", Severity.ERROR, 0)
    assert (found.phase, found.site) == (phase, site)
    assert setting in (found.title if phase == "optimizer" else found.why)
    assert {related.rule for related in found.related} <= {"config-difference"}


def test_what_formats_explain_is_no_finding(reference: Run, tmp_path: Path):
    narrow = watched(tmp_path / "narrow", Variant(autocast=torch.bfloat16))
    assert all(finding.severity is Severity.NOTE for finding in findings_against(compare_runs(reference, narrow)))


def test_a_diagnosis_takes_it_as_a_rule_after_all_others(reference: Run, tmp_path: Path):
    candidate = watched(tmp_path / "candidate", Variant(gelu="tanh"))
    diagnosis = diagnose_run(candidate, rules=(*RULES, reference_rule(reference)))
    assert [(finding.rule, finding.site) for finding in diagnosis.findings] == [("first-divergence", "blocks.1")]
    alone = diagnose_run(reference, rules=(*RULES, reference_rule(reference)))
    assert alone.findings == ()
    assert alone.answers[-1].checks == f"what differs from {reference.path}"
