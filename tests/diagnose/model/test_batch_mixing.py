"""Samples that depend on each other, by what the probe says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from roundoff.diagnose.model.batch_statistics import mixed_batches
from roundoff.runs import BatchMixingProbe, ModuleFacts
from tests.diagnose.findings import only
from tests.run_folders import write_run

PROBE = BatchMixingProbe(step=9, sample=4, changed=(5, 6), site="lstm")


def test_the_site_where_samples_mix_is_named(tmp_path: Path) -> None:
    finding = only(mixed_batches, write_run(tmp_path / "run", PROBE))
    assert (finding.rule, finding.step, finding.site) == ("batch-mixing", 9, "lstm")
    assert "also changes the outputs of sample 5, 6" in finding.why


def test_samples_of_their_own_and_a_norm_without_statistics_are_fine(tmp_path: Path) -> None:
    norm = ModuleFacts(site="lstm", kind="BatchNorm1d", training=True, settings={"track_running_stats": False})
    assert mixed_batches(write_run(tmp_path / "own", replace(PROBE, changed=(), site=None))) == []
    assert mixed_batches(write_run(tmp_path / "norm", PROBE, norm)) == []
