"""The finding about two runs that were not configured the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.compare.settings.setting_comparison import differing_settings
from roundoff.diagnose.against import config_difference
from roundoff.runs import ModuleFacts, OptimizerFacts, Run, Severity, Structure
from tests.run_folders import write_run


def written(folder: Path, *, eps: float = 1e-5, lr: float = 0.1, **info: Any) -> Run:
    norm = ModuleFacts(site="norm", kind="LayerNorm", training=True, settings={"eps": eps})
    adam = OptimizerFacts(name="Adam", groups=({"lr": lr, "betas": [0.9, 0.999]},))
    return write_run(folder, Structure(step=0, modules=(norm,), optimizers=(adam,)), **info)


def test_what_differs_is_listed_with_the_most_suspicious_first(tmp_path: Path) -> None:
    reference = written(tmp_path / "a", seed=0)
    finding = config_difference(differing_settings(reference, written(tmp_path / "b", lr=0.2, seed=1)))
    assert finding is not None
    assert (finding.rule, finding.severity) == ("config-difference", Severity.WARNING)
    assert finding.title == "the runs differ in lr of Adam and in 1 other setting"
    assert finding.why == "lr of Adam: 0.1 against 0.2 (hyperparameter)\nseed: 0 against 1 (seed)"
    assert finding.fix == "make lr of Adam the same in both runs, and compare again"
    assert finding.evidence[0] == {
        "what": "lr of Adam",
        "reference": 0.1,
        "candidate": 0.2,
        "kind": "hyperparameter",
        "suspicion": 0.9,
        "places": [],
    }


def test_a_single_module_is_where_it_is(tmp_path: Path) -> None:
    finding = config_difference(differing_settings(written(tmp_path / "a"), written(tmp_path / "b", eps=1e-3)))
    assert finding is not None
    assert finding.site == "norm"


def test_what_hardly_matters_is_a_note(tmp_path: Path) -> None:
    reference = written(tmp_path / "a", environment={"torch.num_threads": 1})
    finding = config_difference(
        differing_settings(reference, written(tmp_path / "b", environment={"torch.num_threads": 2}))
    )
    assert finding is not None
    assert finding.severity is Severity.NOTE


def test_what_cannot_matter_is_not_reported(tmp_path: Path) -> None:
    reference = written(tmp_path / "a", packages={"pyarrow": "1"}, command=("python", "/a/train.py"), name="first")
    candidate = written(tmp_path / "b", packages={"pyarrow": "2"}, command=("python", "/b/train.py"), name="second")
    assert config_difference(differing_settings(reference, candidate)) is None


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    environment = {f"VARIABLE_{number}": "1" for number in range(12)}
    reference = written(tmp_path / "a", environment={"torch.seed": 0})
    finding = config_difference(
        differing_settings(reference, written(tmp_path / "b", environment={"torch.seed": 0, **environment}))
    )
    assert finding is not None
    assert finding.why.splitlines()[-1] == "4 more differences"
    assert len(finding.evidence) == 12
