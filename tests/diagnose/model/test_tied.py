"""A head that is a copy of the embedding; one that is the embedding; layers that are copies of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.diagnose.model.weight_copies import broken_ties
from roundoff.runs import ModuleFacts, ParameterFacts
from tests.diagnose.findings import only
from tests.run_folders import write_run

EMBEDDING = ModuleFacts(site="tokens", kind="Embedding", training=True, settings={"num_embeddings": 20})


def weight(site: str, **facts: Any) -> ParameterFacts:
    start = {"mean": 0.01, "std": 0.02, "absmax": 0.07, "optimizers": ("Adam",), **facts}
    return ParameterFacts(
        name=f"{site}.weight", site=site, shape=(20, 16), dtype="float32", requires_grad=True, **start
    )


def test_a_copy_is_named_with_what_it_is_a_copy_of(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", EMBEDDING, [weight("tokens"), weight("head")])
    finding = only(broken_ties, run)
    assert (finding.rule, finding.parameter) == ("tie-broken", "head.weight")
    assert finding.evidence[0]["parameters"] == ["tokens.weight", "head.weight"]


def test_other_values_a_frozen_copy_and_copied_layers_are_fine(tmp_path: Path) -> None:
    other, frozen = weight("head", std=0.03), weight("teacher", optimizers=())
    run = write_run(tmp_path / "run", EMBEDDING, [weight("tokens"), other, frozen])
    assert broken_ties(run) == []
    run = write_run(tmp_path / "layers", EMBEDDING, [weight("block.0"), weight("block.1")])
    assert broken_ties(run) == []
